"""Offline requests at the gateway: what workers take of them now, and those that wait here until a worker takes them.

They are never queued in workers. A worker says in its heartbeats, and in its reports while it has any, what it would start
now; of that is subtracted what is on its way. Whatever it gives back waits here, with its tokens, and goes before all that
is new. Owns what workers have told, and no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

from blockwright.actors.gateway.port import Credit
from blockwright.actors.gateway.record import RequestRecord
from blockwright.policies.model.chain import Route
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.requests.dispatch import open_routes
from blockwright.policies.requests.poison import Quarantine
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.policies.sweep.offline_room import OfflineRoom

NONE = OfflineRoom("", 0, 0, 0)


class OfflineParts(Protocol):
    """What is needed of ``GatewayState``."""

    table: RoutingTable
    quarantine: Quarantine
    active: dict[str, RequestRecord]


class OfflineBook:
    """See the module. ``state``: whose requests they are."""

    def __init__(self, state: OfflineParts) -> None:
        self._state = state
        self._rooms: dict[str, dict[str, OfflineRoom]] = {}  # worker -> by application, as it told last
        self._costs: dict[str, Coefficients] = {}
        self._starting: dict[str, dict[str, RequestRecord]] = {}  # worker -> sent there, and not known to have started
        self._waiting: dict[str, dict[str, None]] = {}  # home that they are meant for -> requests that wait here, in order
        self.grown = 0  # how often a worker came to take more

    # what workers say ------------------------------------------------------------------------------------------------

    def told(self, worker: str, rooms: Iterable[OfflineRoom] | None, costs: Coefficients | None = None) -> bool:
        """Whether it takes more than it did. None: it says nothing, as does a worker that is not known to live."""
        if rooms is None or worker not in self._state.table.alive:
            return False
        before, now = self._rooms.get(worker), {room.application: room for room in rooms}
        self._rooms[worker] = now
        if costs is not None:
            self._costs[worker] = costs
        more = before is None or any(_more(room, before.get(name, NONE)) for name, room in now.items())
        self.grown += more
        return more

    def lost(self, worker: str) -> None:
        """It has ended."""
        for known in (self._rooms, self._costs, self._starting):
            known.pop(worker, None)
        self.grown += 1

    def wakes(self) -> list[str]:
        """Requests that wait here and for which there may be credit now: of each home as many as all workers would start."""
        most = sum(max((room.rows for room in rooms.values()), default=0) for rooms in self._rooms.values())
        return [request for those in self._waiting.values() for request in islice(those, most)]

    # requests --------------------------------------------------------------------------------------------------------

    def waits(self, record: RequestRecord) -> None:
        """It waits here. This and the next two do nothing about a request that is not offline."""
        if record.generation.offline:
            self._waiting.setdefault(record.generation.home, {})[record.id] = None

    def sent(self, record: RequestRecord, worker: str) -> None:
        """An attempt is on its way."""
        if record.generation.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            self._starting.setdefault(worker, {})[record.id] = record

    def left(self, record: RequestRecord) -> None:
        """It waits no more, and runs nowhere."""
        if record.generation.offline:
            self._waiting.get(record.generation.home, {}).pop(record.id, None)
            for worker in record.workers[:1]:
                if self._starting.get(worker, {}).pop(record.id, None) is not None:
                    self.grown += 1

    def route(self, record: RequestRecord, now: float) -> Route | None:
        """Where it goes now: to the worker that it is meant for, while that is there; else to that which takes most."""
        state = self._state
        routes = open_routes(record.wanted(now), state.table, state.quarantine)
        meant = [route for route in routes if route.home == record.generation.home]
        need = len(record.tokens) if record.attempt else 0  # of a new one only who sends it knows what it shares
        best, most = None, 0
        for route in meant or routes:
            rows, positions = self._left(route.home, record.application)
            if rows > 0 and positions >= need and positions > most:
                best, most = route, positions
        return best

    # credit ----------------------------------------------------------------------------------------------------------

    def credits(self, application: str) -> list[Credit]:
        """See ``GatewayPort``."""
        table = self._state.table
        routes = {route.home: route for route in table.routes.get(application, [])}
        found = []
        for worker in sorted(routes):
            rows, positions = self._left(worker, application)
            for record in self._held_for(worker, application, routes):
                rows, positions = rows - 1, positions - len(record.tokens)
            told = self._rooms.get(worker, {}).get(application, NONE)
            most = told.room or table.capacity.get(routes[worker].id, 0)
            rows, positions = max(min(rows, positions), 0), max(positions, 0)
            found.append(
                Credit(worker=worker, rows=rows, positions=positions, room=most, costs=self._costs.get(worker))
            )  # fmt: skip
        return found

    def _held_for(self, worker: str, application: str, routes: Mapping[str, Route]) -> Iterable[RequestRecord]:
        """Requests that wait here and may go to the worker."""
        for home, those in self._waiting.items():
            if home == worker or home not in routes:
                for record in map(self._state.active.__getitem__, those):
                    if record.application == application:
                        yield record

    def _left(self, worker: str, application: str) -> tuple[int, int]:
        """Rows and positions that the worker takes beside what is on its way there."""
        told = self._rooms.get(worker, {}).get(application, NONE)
        starting = {id: r for id, r in self._starting.get(worker, {}).items() if not r.planned}
        self._starting[worker] = starting  # who has started is in what the worker says
        return told.rows - len(starting), told.positions - sum(len(record.tokens) for record in starting.values())

    def check(self, active: Iterable[RequestRecord]) -> None:
        """Raise AssertionError when an invariant is broken."""
        offline = [record for record in active if record.generation.offline]
        waiting = {request for those in self._waiting.values() for request in those}
        assert waiting == {r.id for r in offline if r.state == "waiting"}, "a waiting offline request is lost"
        sent = {(w, id) for w, those in self._starting.items() for id, r in those.items() if not r.planned}
        assert sent == {(r.workers[0], r.id) for r in offline if r.workers and not r.planned}, "credit is lost"
        assert self._rooms.keys() <= self._state.table.alive, "a worker that has ended gives credit"


def _more(room: OfflineRoom, before: OfflineRoom) -> bool:
    return room.rows > before.rows or room.positions > before.positions
