"""Where requests can go: the whole routes, the work on each worker, and the routes kept for suspects.

Owns the gateway's picture of the workers; which of several routes is best is
``policies/requests/dispatch.py``'s decision. Never
changes a request and never sends.
"""

from __future__ import annotations

from collections.abc import Iterable

from blockwright.actors.gateway.record import Record
from blockwright.actors.worker.messages import RoutesUpdate
from blockwright.policies.model.chain import Route, bases
from blockwright.policies.requests.dispatch import choose, is_idle, workers_of


class Board:
    """See the module."""

    def __init__(self, applications: Iterable[str]) -> None:
        self.version = 0  # of the last update taken
        self.up: dict[str, int] = {}  # worker -> incarnation of those alive
        self.routes: dict[str, list[Route]] = {name: [] for name in applications}  # whole routes: every worker is up
        self.capacity: dict[str, int] = {}  # route id -> tokens that fit, as last published
        self.room: dict[str, int] = {}  # application -> most tokens that any of its routes was last known to hold
        self.max_length: dict[str, int] = {}  # application -> tokens, once its chain is known
        self.bases: dict[str, str] = {}  # application -> the served one that it shares most parameters with
        self.withdrawn: set[str] = set()  # applications that were served and are no more
        self.vanished: dict[str, float] = {}  # application -> when its last whole route went
        self.served: set[str] = set()  # applications that have had a route
        self.work: dict[str, int] = {}  # worker -> tokens outstanding there, the sum of ``charged`` of its requests
        self.on: dict[str, dict[str, Record]] = {}  # worker -> requests running on it
        self.held: dict[str, Route] = {}  # suspect request -> the route that it has, or waits for to be idle

    def update(self, update: RoutesUpdate, now: float) -> None:
        """All routes in force; older versions than the last are ignored."""
        if update.version <= self.version:
            return
        self.version = update.version
        self.capacity = dict(update.capacity)
        present = {chain.application for chain in update.chains} - set(update.withdrawn)
        self.withdrawn = (self.withdrawn | set(self.max_length)) - present
        chains = [chain for chain in update.chains if chain.application in present]
        self.max_length = {chain.application: chain.max_length for chain in chains}
        self.bases = bases(chains)
        for application in present | set(self.routes):
            whole = [r for r in update.routes if r.application == application and self._whole(r)]
            self._set_routes(application, whole, now)
            if whole and all(r.id in self.capacity for r in whole):
                self.room[application] = max(self.capacity[r.id] for r in whole)

    def lose(self, worker: str, now: float) -> None:
        """A worker is gone, and every route through it until an update says otherwise."""
        self.up.pop(worker, None)
        for application, routes in self.routes.items():
            self._set_routes(application, [r for r in routes if worker not in workers_of(r)], now)

    def rooms(self, application: str) -> tuple[int, ...]:
        """Tokens that each whole route was last known to hold."""
        return tuple(self.capacity[r.id] for r in self.routes[application] if r.id in self.capacity)

    def pick(self, record: Record, now: float, ordinary: bool) -> Route | None:
        """A route for a waiting request, if there is one now.

        A suspect gets a route of its own and waits until that is idle. While ``ordinary`` requests exist only one route is
        kept that way, so that suspects cannot lock everybody out.
        """
        routes = self.routes.get(record.generation.application, [])
        if not routes:
            self.held.pop(record.id, None)
            return None
        avoid = record.avoid if now < record.avoid_until else ""
        fitting = [r for r in routes if self.capacity.get(r.id, record.total) >= record.total] or routes
        kept = self.held.pop(record.id, None)
        closed = frozenset(worker for route in self.held.values() for worker in workers_of(route))
        if not record.suspect:
            return choose(fitting, self.work, closed, avoid)
        if ordinary and self.held:
            return None
        if kept not in fitting or kept is None or kept.id == avoid:
            kept = choose(fitting, self.work, closed, avoid)
        if kept is None:
            return None
        self.held[record.id] = kept
        return kept if is_idle(kept, {worker: len(on) for worker, on in self.on.items()}) else None

    def place(self, record: Record) -> None:
        """Count a request that has just started an attempt."""
        record.charged = record.cost()
        for worker in record.workers:
            self.work[worker] = self.work.get(worker, 0) + record.charged
            self.on.setdefault(worker, {})[record.id] = record

    def recharge(self, record: Record) -> None:
        """Count what a running request has left after news of it."""
        change = record.cost() - record.charged
        if change:
            record.charged += change
            for worker in record.workers:
                self.work[worker] += change

    def remove(self, record: Record) -> None:
        """The request's attempt is over; call before the record forgets its workers."""
        self.held.pop(record.id, None)
        for worker in record.workers:
            self.work[worker] -= record.charged
            del self.on[worker][record.id]
        record.charged = 0

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        for worker, on in self.on.items():
            assert self.work[worker] == sum(r.charged for r in on.values()), worker
            assert all(worker in r.workers and r.state == "running" for r in on.values()), worker
        closed = [worker for route in self.held.values() for worker in workers_of(route)]
        assert len(closed) == len(set(closed)), "two suspects hold one worker"
        for routes in self.routes.values():
            assert all(self._whole(route) for route in routes)

    def _whole(self, route: Route) -> bool:
        return all(worker in self.up for worker in workers_of(route))

    def _set_routes(self, application: str, routes: list[Route], now: float) -> None:
        if routes:
            self.served.add(application)
        elif self.routes.get(application):
            self.vanished[application] = now
        self.routes[application] = routes
