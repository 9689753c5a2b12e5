"""Offline requests at the gateway: what workers take of them now, and those that wait here until a worker takes them.

They are never queued in workers. A worker says in its heartbeats, and in its reports while it has any, what it would start
now; of that is subtracted what is on its way. Whatever it gives back waits here, with its tokens, and goes before all that
is new. Owns what workers have told, and no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

from ...policies.model.chain import Route
from ...policies.plan.coefficients import Coefficients
from ...policies.requests.dispatch import open_routes
from ...policies.requests.offline_credit import OfflineShare, for_new, home_of, left, more
from ...policies.requests.poison import Quarantine
from ...policies.requests.routing_table import RoutingTable
from ...policies.sweep.offline_room import OfflineRoom
from .port import Credit
from .record import RequestRecord

NONE = OfflineRoom((), 0, 0, 0)


class OfflineParts(Protocol):
    """What is needed of ``GatewayState``."""

    table: RoutingTable
    quarantine: Quarantine
    active: dict[str, RequestRecord]


class OfflineBook:
    """See the module. ``state``: whose requests they are."""

    def __init__(self, state: OfflineParts) -> None:
        self._state = state
        self._said: dict[str, list[OfflineRoom]] = {}  # worker -> what it told last
        self._rooms: dict[str, dict[str, OfflineRoom]] = {}  # the same by application
        self._costs: dict[str, Coefficients] = {}
        self._sweeps: dict[str, int] = {}
        self._starting: dict[str, dict[str, RequestRecord]] = {}  # worker -> sent there, and not known to have started
        self._waiting: dict[str, dict[str, None]] = {}  # home that they are meant for -> requests that wait here, in order
        self._grown = 0  # how often a worker came to take more

    @property
    def grown(self) -> int:
        """How often there came to be more credit, or may have: what is on demand, or here again, is published."""
        return self._grown + self._state.table.version

    # what workers say ------------------------------------------------------------------------------------------------

    def told(
        self, worker: str, rooms: list[OfflineRoom] | None, costs: Coefficients | None = None, sweeps: int | None = None
    ) -> bool:
        """Whether it takes more than it did. ``rooms``: None where it says nothing, as does a worker that is not known to
        live; ``costs``, ``sweeps``: of those that it makes, and how many it has made."""
        if worker not in self._state.table.alive:
            return False
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
        """It has ended."""
        for known in (self._said, self._rooms, self._costs, self._sweeps, self._starting):
            known.pop(worker, None)
        self._grown += 1

    def wakes(self) -> list[str]:
        """Requests that wait here and for which there may be credit now: of each home as many as all workers would start."""
        most = sum(max((room.rows for room in rooms), default=0) for rooms in self._said.values())
        return [request for those in self._waiting.values() for request in islice(those, most)]

    # requests --------------------------------------------------------------------------------------------------------

    def waits(self, record: RequestRecord) -> None:
        """It waits here. This and the next two do nothing about a request that is not offline."""
        if record.offline:
            self._waiting.setdefault(record.generation.home, {})[record.id] = None

    def sent(self, record: RequestRecord, worker: str) -> None:
        """An attempt is on its way."""
        if record.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            self._starting.setdefault(worker, {})[record.id] = record

    def left(self, record: RequestRecord) -> None:
        """It waits no more, and runs nowhere."""
        if record.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            for worker in record.workers[:1]:
                if self._starting.get(worker, {}).pop(record.id, None) is not None:
                    self._grown += 1

    def route(self, record: RequestRecord, now: float) -> Route | None:
        """Where it goes now."""
        routes = open_routes(record.wanted(now), self._state.table, self._state.quarantine)
        need = len(record.tokens) if record.attempt else 0  # of a new one only who sends it knows what it shares
        return home_of(routes, record.generation.home, need, lambda worker: self._left(worker, record.application))

    # credit ----------------------------------------------------------------------------------------------------------

    def credits(self, application: str) -> list[Credit]:
        """See ``GatewayPort``."""
        table = self._state.table
        if table.absent(application) or table.given_up(application):
            return self._first(application)
        routes = {route.home: route for route in table.routes.get(application, [])}
        found = []
        for worker in sorted(routes):
            held = (len(record.tokens) for record in self._held_for(worker, application, routes))
            share = for_new(self._left(worker, application), held)
            most = self._told_of(worker, application).room or table.capacity.get(routes[worker].id, 0)
            costs, sweeps = self._costs.get(worker), self._sweeps.get(worker, 0)
            found.append(
                Credit(
                    worker=worker, rows=share.rows, positions=share.positions, room=most, costs=costs, sweeps=sweeps
                )
            )  # fmt: skip
        return found

    def _first(self, application: str) -> list[Credit]:
        """For one request of an application that is in no worker: it is loaded for it, or refuses it."""
        waits = any(self._state.active[id].application == application for those in self._waiting.values() for id in those)
        length = self._state.table.chains[application].max_length
        return [] if waits else [Credit(worker="", rows=1, positions=1, room=length)]

    def _held_for(self, worker: str, application: str, routes: Mapping[str, Route]) -> Iterable[RequestRecord]:
        """Requests that wait here and may go to the worker."""
        for home, those in self._waiting.items():
            if home == worker or home not in routes:
                for record in map(self._state.active.__getitem__, those):
                    if record.application == application:
                        yield record

    def _told_of(self, worker: str, application: str) -> OfflineRoom:
        return self._rooms.get(worker, {}).get(application, NONE)

    def _left(self, worker: str, application: str) -> OfflineShare:
        """What the worker takes beside what is on its way there."""
        starting = {id: r for id, r in self._starting.get(worker, {}).items() if not r.planned}
        self._starting[worker] = starting  # who has started is in what the worker says
        return left(_share(self._told_of(worker, application)), (len(record.tokens) for record in starting.values()))

    def check(self, active: Iterable[RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken."""
        offline = [record for record in active if record.offline]
        waiting = {request for those in self._waiting.values() for request in those}
        assert waiting == {r.id for r in offline if r.state == "waiting"}, "a waiting offline request is lost"
        sent = {(w, id) for w, those in self._starting.items() for id, r in those.items() if not r.planned}
        assert sent == {(r.workers[0], r.id) for r in offline if r.workers and not r.planned}, "credit is lost"
        assert self._rooms.keys() <= self._state.table.alive, "a worker that has ended gives credit"


def _share(room: OfflineRoom) -> OfflineShare:
    return OfflineShare(room.rows, room.positions)
