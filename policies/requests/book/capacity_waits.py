"""Capacity waits: requests too long for the memory that the loaded applications leave, until idle ones have been unloaded.

Owns the waiting requests with the start of the wait and the tokens they need. ``policies/requests/dispatch.py`` decides
whether a request must wait. The controller chooses which application is unloaded; it gets the needs of all requests
that wait for a route.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..dispatch import RouteQuery, lacking_room
from ..queue import WaitingQueue
from ..refusal import RequestRefused
from ..request_timeout import RequestTimeout
from ..routing_table import RoutingTable
from .record import RequestRecord


@dataclass(frozen=True, slots=True)
class CapacityWait:
    """The wait of one request."""

    since: float
    tokens: int  # that a route of its application must be able to hold


class CapacityWaits:
    """The room waits at one gateway (see the module).

    ``active``: the requests that have not ended, including those in ``queue``.
    """

    def __init__(self, table: RoutingTable, queue: WaitingQueue, active: Mapping[str, RequestRecord]) -> None:
        self._table = table
        self._queue = queue
        self._active = active
        self._waits: dict[str, CapacityWait] = {}
        self._unsent: dict[str, int] = {}  # like ``wants``, for requests the controller does not know of

    def arrived(self, record: RequestRecord) -> None:
        """Note that a request waits for a route from now on."""
        if self._table.absent(record.application):
            self._tell(record.application, record.total)

    def tick(self, wanted: RouteQuery, now: float) -> bool:
        """Return whether a request has to wait for room, and record its wait."""
        tokens = lacking_room(wanted, self._table)
        if not tokens:
            self.drop(wanted.request)
            return False
        known = self._waits.get(wanted.request)
        self._waits[wanted.request] = CapacityWait(known.since if known is not None else now, tokens)
        if known is None:
            self._tell(wanted.application, tokens)
        return True

    def drop(self, request: str) -> None:
        """Remove a request that starts or ends. No-op if it does not wait here."""
        self._waits.pop(request, None)

    def wants(self) -> dict[str, int]:
        """Return the applications that requests wait for, with the tokens of the longest of these requests.

        They have no route, because they are loaded on demand, or none with room.
        """
        absent = [name for name in self._queue.applications() if self._table.absent(name)]
        found = {name: max(self._active[request].total for request in self._queue.in_order([name])) for name in absent}
        for request, wait in self._waits.items():
            name = self._active[request].application
            found[name] = max(wait.tokens, found.get(name, 0))
        return found

    def offline(self) -> set[str]:
        """Return the subset of these applications for which only offline requests wait."""
        absent = [name for name in self._queue.applications() if self._table.absent(name)]
        waiting = [*self._queue.in_order(absent), *self._waits]
        online = {self._active[request].application for request in waiting if not self._active[request].offline}
        return {self._active[request].application for request in waiting} - online

    def repeat(self) -> None:
        """Queue all wants to be sent again."""
        self._unsent = self.wants()

    def drain(self) -> list[dict[str, int]]:
        """Return the wants to send to the controller now: one dict or none."""
        if not self._unsent:
            return []
        wants, self._unsent = self._unsent, {}
        return [wants]

    def _tell(self, application: str, tokens: int) -> None:
        self._unsent[application] = max(tokens, self._unsent.get(application, 0))

    def late(self, timeouts: RequestTimeout, now: float) -> Iterator[tuple[str, RequestRefused]]:
        """Yield requests that have waited too long for any route (``RequestTimeout.unserved``) or for room, each with its
        refusal.
        """
        yield from timeouts.unserved(self._queue, self._table, now)
        for request in [request for request, wait in self._waits.items() if timeouts.waited(wait.since, now)]:
            yield request, timeouts.crowded(self._active[request].model)

    def check(self, waiting: Collection[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``waiting``: all requests without a route."""
        assert self._waits.keys() <= set(waiting)
