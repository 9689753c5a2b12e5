"""Poison requests: requests whose computation kills the worker that runs them.

Counts the worker deaths at which each request was present. A request that was present at too many is *suspect* and runs
alone, on a route in quarantine. One that kills even then is poison and fails, so that it harms no other request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..model.chain import Route
from .refusal import Refusal, RequestRefused

SUSPECT_DEATHS = 2  # present deaths until it runs alone
SUSPECT_NEAR = 4  # near deaths in a row until it runs alone: it may kill before its first report
POISON_DEATHS = 3  # present deaths until it fails


@dataclass(slots=True)
class Deaths:
    """The worker deaths of one request."""

    present: int = 0  # deaths of workers that had planned the request, or ran it alone
    near: int = 0  # deaths in a row of workers that had the request but had reported no plan of it
    unsure: frozenset[str] = frozenset()  # workers of which one may have died last; they may be out of reach and live
    unsure_present: bool = False  # how that was counted

    def count(self, present: bool, unsure: Iterable[str] = ()) -> None:
        """Count the death of a worker of its route.

        ``present``: it had reported a plan of the request, or ran nothing else. ``unsure``: one of these may have died, or
        be out of reach.
        """
        if present:
            self.present += 1
        else:
            self.near += 1
        self.unsure, self.unsure_present = frozenset(unsure), present

    def died(self, worker: str) -> None:
        """Note that a worker has died indeed."""
        if worker in self.unsure:
            self.unsure = frozenset()

    def forgive(self) -> None:
        """Take the last count back: that worker lives, and was out of reach."""
        self.unsure = frozenset()
        if self.unsure_present:
            self.present -= 1
        else:
            self.near = max(self.near - 1, 0)

    def planned(self) -> None:
        """Note that its home has reported a first plan and lives: the request does not kill before that."""
        self.near = 0

    def refusal(self) -> RequestRefused:
        """Return the refusal for its client when it is not retried."""
        message = f"the request was running when {self.present} workers died, the last time alone; it is not retried"
        return RequestRefused(Refusal.POISON, message)

    @property
    def suspect(self) -> bool:
        return self.present >= SUSPECT_DEATHS or self.near >= SUSPECT_NEAR

    @property
    def poison(self) -> bool:
        return self.present >= POISON_DEATHS


def outnumbered(suspect: Deaths, everyone: Iterable[Deaths]) -> bool:
    """Return whether non-suspect requests exist, so that only one route is reserved for suspects.

    ``everyone``: all active ones.
    """
    return suspect.suspect and any(not deaths.suspect for deaths in everyone)


@dataclass(slots=True)
class Quarantine:
    """Routes reserved for suspects: no other request is sent through their workers."""

    routes: dict[str, Route] = field(default_factory=dict)  # suspect -> the route it has, or waits for

    def keep(self, request: str, route: Route) -> None:
        self.routes[request] = route

    def release(self, request: str) -> Route | None:
        """Return the reserved route, if any, to general use."""
        return self.routes.pop(request, None)

    def workers(self) -> frozenset[str]:
        """Return the workers closed to other requests."""
        return frozenset(hop.worker for route in self.routes.values() for hop in route.hops)

    def lets(self, deaths: Deaths, routes: Iterable[Route]) -> bool:
        """Return whether a waiting request may find a place on one of the routes, of which there is at least one.

        A suspect uses its own route, any other request one without a closed worker.
        """
        if deaths.suspect or not self.routes:
            return True
        closed = self.workers()
        return any(closed.isdisjoint(hop.worker for hop in route.hops) for route in routes)

    def check(self) -> None:
        """Raise AssertionError when two suspects hold one worker."""
        apart = [{hop.worker for hop in route.hops} for route in self.routes.values()]
        assert sum(map(len, apart)) == len(self.workers()), "two suspects hold one worker"
