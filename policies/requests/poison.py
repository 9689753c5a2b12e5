"""Poison requests: those whose computation kills the worker that runs them.

Counts the worker deaths that each request was present at. A request that was present at too many is *suspect* and runs
alone, on a route in quarantine; one that kills even then is poison and fails, so that it takes nobody else along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..model.chain import Route
from .refusal import Refusal, RequestRefused

SUSPECT_DEATHS = 2  # present at so many: it runs alone
SUSPECT_NEAR = 4  # so many in a row without a report of it: it may kill before its first report
POISON_DEATHS = 3  # present at so many: it fails


@dataclass(slots=True)
class Deaths:
    """Worker deaths of one request."""

    present: int = 0  # of workers that had planned the request, or had it alone
    near: int = 0  # in a row, of workers that had the request and had not reported a plan of it

    def count(self, present: bool) -> None:
        """A worker of its route died. ``present``: it had reported a plan of the request, or had nothing else to run."""
        if present:
            self.present += 1
        else:
            self.near += 1

    def planned(self) -> None:
        """Its home has reported a first plan, and lives: it does not kill before that."""
        self.near = 0

    def refusal(self) -> RequestRefused:
        """What its client is told when it is not tried again."""
        message = f"the request was running when {self.present} workers died, the last time alone; it is not retried"
        return RequestRefused(Refusal.POISON, message)

    @property
    def suspect(self) -> bool:
        return self.present >= SUSPECT_DEATHS or self.near >= SUSPECT_NEAR

    @property
    def poison(self) -> bool:
        return self.present >= POISON_DEATHS


def outnumbered(suspect: Deaths, everyone: Iterable[Deaths]) -> bool:
    """Whether others than suspects exist, so that suspects may keep one route in all to themselves. ``everyone``: all
    requests that have not ended."""
    return suspect.suspect and any(not deaths.suspect for deaths in everyone)


@dataclass(slots=True)
class Quarantine:
    """Routes kept for suspects: no other request is sent through their workers."""

    routes: dict[str, Route] = field(default_factory=dict)  # suspect -> the route that it has, or waits for

    def keep(self, request: str, route: Route) -> None:
        self.routes[request] = route

    def release(self, request: str) -> Route | None:
        """The route that was kept, if any; it is free for all."""
        return self.routes.pop(request, None)

    def workers(self) -> frozenset[str]:
        """Closed to others."""
        return frozenset(hop.worker for route in self.routes.values() for hop in route.hops)

    def lets(self, deaths: Deaths, routes: Iterable[Route]) -> bool:
        """Whether a request that waits may find a place on one of the routes (there is one): a suspect its own, any other
        one that passes no worker that is closed."""
        if deaths.suspect or not self.routes:
            return True
        closed = self.workers()
        return any(closed.isdisjoint(hop.worker for hop in route.hops) for route in routes)

    def check(self) -> None:
        """Raise AssertionError when two suspects hold one worker."""
        apart = [{hop.worker for hop in route.hops} for route in self.routes.values()]
        assert sum(map(len, apart)) == len(self.workers()), "two suspects hold one worker"
