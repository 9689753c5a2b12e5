"""Capacity waits: requests too long for the memory that the loaded applications leave, until idle ones have been unloaded.

Owns the waiting requests with the start of the wait and the tokens they need. ``policies/requests/dispatch.py`` decides
whether a request must wait. The controller chooses which application is unloaded; it gets the needs of all requests
that wait for a route. A request that *bridges* has begun on a variant while its own application is loaded on demand. It
counts as one that waits for the application, which would otherwise not be loaded for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ..dispatch import RouteQuery, lacking_room
from ..queue import WaitingQueue
from ..request_timeout import RequestTimeout
from ..routing_table import RoutingTable
from .record import RequestRecord


@dataclass(frozen=True, slots=True)
class CapacityWait:
    """The wait of one request."""

    since: float
    tokens: int  # that a route of its application must be able to hold


class CapacityWaits:
    """The capacity waits at one gateway (see the module).

    ``table``, ``queue`` and ``active`` of its methods: the routes, the requests without one, and all that have not ended.
    """

    def __init__(self) -> None:
        self._waits: dict[str, CapacityWait] = {}
        self._unsent: dict[str, int] = {}  # like ``wants``, for requests the controller does not know of
        self.bridging: dict[str, None] = {}  # requests that bridge, until they go over to their own application

    def arrived(self, record: RequestRecord, table: RoutingTable) -> None:
        """Note that a request waits for a route from now on."""
        if table.absent(record.application):
            self._tell(record.application, record.progress.total)

    def bridge(self, record: RequestRecord) -> None:
        """Note that a request begins on a variant while its own application is loaded on demand."""
        self.bridging[record.id] = None
        self._tell(record.generation.application, record.progress.total)

    def tick(self, wanted: RouteQuery, table: RoutingTable, now: float) -> bool:
        """Return whether a request has to wait for room, and record its wait."""
        tokens = lacking_room(wanted, table)
        if not tokens:
            self.drop(wanted.request)
            return False
        known = self._waits.get(wanted.request)
        self._waits[wanted.request] = CapacityWait(known.since if known is not None else now, tokens)
        if known is None:
            self._tell(wanted.application, tokens)
        return True

    def drop(self, request: str) -> None:
        """Remove a request that starts, goes over or ends. No-op if it does not wait here."""
        self._waits.pop(request, None)
        self.bridging.pop(request, None)

    def wants(self, table: RoutingTable, queue: WaitingQueue, active: Mapping[str, RequestRecord]) -> dict[str, int]:
        """Return the applications that requests wait for, with the tokens of the longest of these requests.

        They have no route, because they are loaded on demand, or none with room. Requests that bridge count.
        """
        absent = [name for name in queue.applications() if table.absent(name)]
        found = {name: max(active[request].progress.total for request in queue.in_order([name])) for name in absent}
        for request, wait in self._waits.items():
            name = active[request].application
            found[name] = max(wait.tokens, found.get(name, 0))
        for name, tokens in self._bridged(table, active):
            found[name] = max(tokens, found.get(name, 0))
        return found

    def _bridged(self, table: RoutingTable, active: Mapping[str, RequestRecord]) -> Iterator[tuple[str, int]]:
        """Yield the own application and the tokens of each request that bridges, while that has no route."""
        for record in (active[request] for request in self.bridging):
            if table.absent(own := record.generation.application):
                yield own, record.progress.total

    def offline(self, table: RoutingTable, queue: WaitingQueue, active: Mapping[str, RequestRecord]) -> set[str]:
        """Return the subset of these applications for which only offline requests wait."""
        absent = [name for name in queue.applications() if table.absent(name)]
        waiting = [*queue.in_order(absent), *self._waits]
        online = {active[request].application for request in waiting if not active[request].offline}
        online.update(name for name, _ in self._bridged(table, active))
        return {active[request].application for request in waiting} - online

    def repeat(self, table: RoutingTable, queue: WaitingQueue, active: Mapping[str, RequestRecord]) -> None:
        """Queue all wants to be sent again."""
        self._unsent = self.wants(table, queue, active)

    def drain(self) -> list[dict[str, int]]:
        """Return the wants to send to the controller now: one dict or none."""
        if not self._unsent:
            return []
        wants, self._unsent = self._unsent, {}
        return [wants]

    def _tell(self, application: str, tokens: int) -> None:
        self._unsent[application] = max(tokens, self._unsent.get(application, 0))

    def late(self, timeouts: RequestTimeout, now: float) -> list[str]:
        """Return the requests that have waited too long for room."""
        return [request for request, wait in self._waits.items() if timeouts.waited(wait.since, now)]

    def check(self, waiting: Collection[str], active: Mapping[str, RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken. ``waiting``: all requests without a route; ``active``: all."""
        assert self._waits.keys() <= set(waiting)
        assert all(active[request].variant and active[request].placement.workers for request in self.bridging)
