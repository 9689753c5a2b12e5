"""Room waits: requests that are longer than what the loaded applications leave, until idle ones have been unloaded.

Owns who waits for that, since when and for how much. Whether a request has to is ``policies/requests/dispatch.py``'s to say;
who gives way is the controller's, which is told what all that wait for a route need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...policies.requests.dispatch import Wanted, lacking_room
from ...policies.requests.queue import WaitingQueue
from ...policies.requests.refusal import RequestRefused
from ...policies.requests.request_timeout import RequestTimeout
from ...policies.requests.routing_table import RoutingTable
from .record import RequestRecord


@dataclass(frozen=True, slots=True)
class RoomWait:
    """One request's."""

    since: float
    tokens: int  # that a route of its application must come to hold


class RoomWaits:
    """See the module. ``active``: the requests that have not ended, those in ``queue`` among them."""

    def __init__(self, table: RoutingTable, queue: WaitingQueue, active: Mapping[str, RequestRecord]) -> None:
        self._table, self._queue, self._active = table, queue, active
        self._waits: dict[str, RoomWait] = {}
        self._untold: dict[str, int] = {}  # as ``wants``, of requests that the controller has not heard of

    def arrived(self, record: RequestRecord) -> None:
        """It waits for a route from now on."""
        if self._table.absent(record.application):
            self._tell(record.application, record.total)

    def look(self, wanted: Wanted, now: float) -> bool:
        """Whether a request has to wait for room."""
        tokens = lacking_room(wanted, self._table)
        if not tokens:
            self.drop(wanted.request)
            return False
        known = self._waits.get(wanted.request)
        self._waits[wanted.request] = RoomWait(known.since if known is not None else now, tokens)
        if known is None:
            self._tell(wanted.application, tokens)
        return True

    def drop(self, request: str) -> None:
        """It starts, or ends. No-op where it does not wait here."""
        self._waits.pop(request, None)

    def wants(self) -> dict[str, int]:
        """Applications that requests wait for which have no route, as they are on demand, or none with room: tokens of the
        longest of these."""
        absent = [name for name in self._queue.applications() if self._table.absent(name)]
        found = {name: max(self._active[request].total for request in self._queue.in_order([name])) for name in absent}
        for request, wait in self._waits.items():
            name = self._active[request].application
            found[name] = max(wait.tokens, found.get(name, 0))
        return found

    def offline(self) -> set[str]:
        """Of these applications those that offline requests alone wait for."""
        absent = [name for name in self._queue.applications() if self._table.absent(name)]
        waiting = [*self._queue.in_order(absent), *self._waits]
        online = {self._active[request].application for request in waiting if not self._active[request].offline}
        return {self._active[request].application for request in waiting} - online

    def repeat(self) -> None:
        """Say all again."""
        self._untold = self.wants()

    def take(self) -> list[dict[str, int]]:
        """What the controller is to be told now, if anything."""
        if not self._untold:
            return []
        told, self._untold = self._untold, {}
        return [told]

    def _tell(self, application: str, tokens: int) -> None:
        self._untold[application] = max(tokens, self._untold.get(application, 0))

    def late(self, timeouts: RequestTimeout, now: float) -> Iterator[tuple[str, RequestRefused]]:
        """Requests that have waited too long for any route, or here, as ``RequestTimeout.unserved`` has it."""
        yield from timeouts.unserved(self._queue, self._table, now)
        for request in [request for request, wait in self._waits.items() if timeouts.waited(wait.since, now)]:
            yield request, timeouts.crowded(self._active[request].model)

    def check(self, waiting: Collection[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``waiting``: all requests without a route."""
        assert self._waits.keys() <= set(waiting)
