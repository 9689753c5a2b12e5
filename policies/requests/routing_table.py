"""Routing table: which routes are whole, what each holds, and how much work is on each worker.

What the controller publishes and what has become of the workers since. Which of several routes a request takes is
``dispatch.py``'s decision; who may run beside whom ``poison.py``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from blockwright.policies.model.chain import Chain, Route, bases


class RoutingTable:
    """See the module."""

    def __init__(self, applications: Iterable[str]) -> None:
        self.version = 0  # of the last update taken
        self.alive: set[str] = set()  # workers
        self._published: list[Route] = []  # in force as last told, less those through workers that ended since
        self.routes: dict[str, list[Route]] = {name: [] for name in applications}  # whole routes: every worker is alive
        self.capacity: dict[str, int] = {}  # route id -> tokens that fit, as last published
        self.room: dict[str, int] = {}  # application -> most tokens that any of its routes was last known to hold
        self.max_length: dict[str, int] = {}  # application -> tokens, once its chain is known
        self.bases: dict[str, str] = {}  # application -> the served one that it shares most parameters with
        self.withdrawn: set[str] = set()  # applications that were served and are no more
        self.vanished: dict[str, float] = {}  # application -> when its last whole route went
        self.served: set[str] = set()  # applications that have had a route
        self.work: dict[str, int] = {}  # worker -> tokens outstanding there
        self.on: dict[str, set[str]] = {}  # worker -> requests running on it

    def update(
        self,
        version: int,
        chains: Sequence[Chain],
        routes: Sequence[Route],
        withdrawn: Iterable[str],
        capacity: Mapping[str, int],
        now: float,
    ) -> None:
        """All routes in force; older versions than the last are ignored."""
        if version <= self.version:
            return
        self.version = version
        self.capacity = dict(capacity)
        present = {chain.application for chain in chains} - set(withdrawn)
        self.withdrawn = (self.withdrawn | set(self.max_length)) - present
        chains = [chain for chain in chains if chain.application in present]
        self.max_length = {chain.application: chain.max_length for chain in chains}
        self.bases = bases(chains)
        for application in sorted(present):
            self.routes.setdefault(application, [])
        self._published = [route for route in routes if route.application in self.routes]
        self._take(now)

    def _take(self, now: float) -> None:
        """Of the published routes those that are whole."""
        whole: dict[str, list[Route]] = {application: [] for application in self.routes}
        for route in self._published:
            if self._whole(route):
                whole[route.application].append(route)
        for application, found in whole.items():
            self._set_routes(application, found, now)
            if found and all(route.id in self.capacity for route in found):
                self.room[application] = max(self.capacity[route.id] for route in found)

    def join(self, worker: str, now: float) -> None:
        """A worker lives; its routes come with the next update, or came before this word."""
        self.alive.add(worker)
        if any(hop.worker == worker for route in self._published for hop in route.hops):
            self._take(now)

    def lose(self, worker: str, now: float) -> set[str]:
        """A worker is gone, and every route through it until an update says otherwise; the requests that ran on it."""
        self.alive.discard(worker)
        self._published = [r for r in self._published if all(hop.worker != worker for hop in r.hops)]
        for application, routes in self.routes.items():
            self._set_routes(application, [route for route in routes if self._whole(route)], now)
        return set(self.on.get(worker, ()))

    def rooms(self, application: str) -> tuple[int, ...]:
        """Tokens that each whole route was last known to hold."""
        return tuple(self.capacity[r.id] for r in self.routes[application] if r.id in self.capacity)

    def place(self, request: str, workers: Iterable[str], tokens: int) -> None:
        """A request runs on these workers and has so many tokens to compute."""
        for worker in workers:
            self.work[worker] = self.work.get(worker, 0) + tokens
            self.on.setdefault(worker, set()).add(request)

    def charge(self, workers: Iterable[str], change: int) -> None:
        """A running request has so many tokens more to compute, or fewer."""
        for worker in workers:
            self.work[worker] += change

    def remove(self, request: str, workers: Iterable[str], tokens: int) -> None:
        """It runs there no more; ``tokens`` were counted last."""
        for worker in workers:
            self.work[worker] -= tokens
            self.on[worker].discard(request)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        for routes in self.routes.values():
            assert all(self._whole(route) for route in routes)

    def _whole(self, route: Route) -> bool:
        return all(hop.worker in self.alive for hop in route.hops)

    def _set_routes(self, application: str, routes: list[Route], now: float) -> None:
        if routes:
            self.served.add(application)
        elif self.routes.get(application):
            self.vanished[application] = now
        self.routes[application] = routes
