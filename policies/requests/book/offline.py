"""Offline requests at the gateway: the credit of each worker, and requests that wait here for credit.

Offline requests are never queued in workers. A worker states what it would start now in its heartbeats, and in its reports
while it has offline requests; requests on their way to it are subtracted. A request that a worker gives back waits here,
with its tokens, and goes before all new ones. Owns the workers' statements, and no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice

from ...model.chain import Route
from ...plan.coefficients import Coefficients
from ...sweep.offline_capacity import OfflineCapacity
from ..offline_credit import OfflineShare, for_new, home_of, left, more
from ..routing_table import RoutingTable
from .record import RequestRecord
from .values import Credit

NONE = OfflineCapacity((), 0, 0, 0)


class OfflineBook:
    """The credit and the waiting offline requests of one gateway (see the module)."""

    def __init__(self) -> None:
        self._said: dict[str, list[OfflineCapacity]] = {}  # worker -> its last statement
        self._rooms: dict[str, dict[str, OfflineCapacity]] = {}  # the same by application
        self._costs: dict[str, Coefficients] = {}
        self._sweeps: dict[str, int] = {}
        self._starting: dict[str, dict[str, RequestRecord]] = {}  # worker -> sent there, not known to have started
        self._waiting: dict[str, dict[str, None]] = {}  # intended home -> requests that wait here, in order
        self._grown = 0  # times that a worker's credit has grown

    def growth(self, version: int) -> int:
        """Return a counter that rises whenever credit grows or may have grown.

        It includes the ``version`` of the routes: an application that is on demand, or served again, is published there.
        """
        return self._grown + version

    # what workers say ------------------------------------------------------------------------------------------------

    def accept_report(
        self, worker: str, rooms: list[OfflineCapacity] | None, costs: Coefficients | None = None, sweeps: int | None = None
    ) -> bool:
        """Take the statement of a live worker; return whether its credit has grown.

        ``rooms``: None if not stated. ``costs``: of the worker's sweeps. ``sweeps``: how many it has made.
        """
        if costs is not None:
            self._costs[worker] = costs
        if sweeps is not None:
            self._sweeps[worker] = sweeps
        if rooms is None or rooms == self._said.get(worker):
            return False
        before, now = self._rooms.get(worker), {name: room for room in rooms for name in room.applications}
        self._said[worker], self._rooms[worker] = rooms, now
        grown = before is None or any(more(_share(room), _share(before.get(name, NONE))) for name, room in now.items())
        self._grown += grown
        return grown

    def lost(self, worker: str) -> None:
        """Forget a worker that has ended."""
        for known in (self._said, self._rooms, self._costs, self._sweeps, self._starting):
            known.pop(worker, None)
        self._grown += 1

    def wakes(self) -> list[str]:
        """Return waiting requests that may have credit now: for each home as many as all workers together would start."""
        limit = sum(max((room.rows for room in rooms), default=0) for rooms in self._said.values())
        return [request for those in self._waiting.values() for request in islice(those, limit)]

    # requests --------------------------------------------------------------------------------------------------------

    def waits(self, record: RequestRecord) -> None:
        """Add a request that waits here. Like ``sent`` and ``left``, a no-op unless the request is offline."""
        if record.offline:
            self._waiting.setdefault(record.generation.home, {})[record.id] = None

    def sent(self, record: RequestRecord, worker: str) -> None:
        """Note that an attempt is on its way to a worker."""
        if record.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            self._starting.setdefault(worker, {})[record.id] = record

    def left(self, record: RequestRecord) -> None:
        """Remove a request that neither waits nor runs any more."""
        if record.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            for worker in record.placement.workers[:1]:
                if self._starting.get(worker, {}).pop(record.id, None) is not None:
                    self._grown += 1

    def route(self, record: RequestRecord, routes: Sequence[Route]) -> Route | None:
        """Return the route of ``routes``, which are open, that the request can take now, or None."""
        need = (
            len(record.progress.tokens) if record.placement.attempt else 0
        )  # for a new request only the sender knows the shared prefix
        return home_of(routes, record.generation.home, need, lambda worker: self._left(worker, record.application))

    # credit ----------------------------------------------------------------------------------------------------------

    def credits(self, application: str, table: RoutingTable, active: Mapping[str, RequestRecord]) -> list[Credit]:
        """Return the credit of each worker for an application (see ``GatewayPort``)."""
        if table.absent(application) or table.given_up(application):
            return self._first(application, table.chains[application].max_length, active)
        routes = {route.home: route for route in table.routes.get(application, [])}
        found = []
        for worker in sorted(routes):
            held = (len(record.progress.tokens) for record in self._held_for(worker, application, routes, active))
            share = for_new(self._left(worker, application), held)
            room = self._capacity_of(worker, application).room or table.capacity.get(routes[worker].id, 0)
            costs, sweeps = self._costs.get(worker), self._sweeps.get(worker, 0)
            found.append(
                Credit(
                    worker=worker, rows=share.rows, positions=share.positions, room=room, costs=costs, sweeps=sweeps
                )
            )  # fmt: skip
        return found

    def _first(self, application: str, length: int, active: Mapping[str, RequestRecord]) -> list[Credit]:
        """Return credit for one request of an application that no worker holds.

        That request makes it load, or is refused.
        """
        waits = any(active[id].application == application for those in self._waiting.values() for id in those)
        return [] if waits else [Credit(worker="", rows=1, positions=1, room=length)]

    def _held_for(
        self, worker: str, application: str, routes: Mapping[str, Route], active: Mapping[str, RequestRecord]
    ) -> Iterable[RequestRecord]:
        """Yield requests that wait here and may go to the worker."""
        for home, those in self._waiting.items():
            if home == worker or home not in routes:
                for record in map(active.__getitem__, those):
                    if record.application == application:
                        yield record

    def _capacity_of(self, worker: str, application: str) -> OfflineCapacity:
        return self._rooms.get(worker, {}).get(application, NONE)

    def _left(self, worker: str, application: str) -> OfflineShare:
        """Return the worker's credit minus the requests on their way there."""
        starting = {id: r for id, r in self._starting.get(worker, {}).items() if not r.progress.planned}
        self._starting[worker] = starting  # the worker's statement includes requests that have started
        return left(
            _share(self._capacity_of(worker, application)), (len(record.progress.tokens) for record in starting.values())
        )

    def check(self, active: Iterable[RequestRecord], alive: Set[str]) -> None:
        """Raise AssertionError when an invariant is broken."""
        offline = [record for record in active if record.offline]
        waiting = {request for those in self._waiting.values() for request in those}
        assert waiting == {r.id for r in offline if r.waiting}, "a waiting offline request is lost"
        sent = {(w, id) for w, those in self._starting.items() for id, r in those.items() if not r.progress.planned}
        placed = [r for r in offline if r.placement.workers and not r.progress.planned]
        assert sent == {(r.placement.workers[0], r.id) for r in placed}, "credit is lost"
        assert self._rooms.keys() <= alive, "a worker that has ended gives credit"


def _share(room: OfflineCapacity) -> OfflineShare:
    return OfflineShare(room.rows, room.positions)
