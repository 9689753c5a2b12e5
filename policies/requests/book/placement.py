"""The placement of a request: its attempts, the route of the current one, and the routes that it should not take."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...model.chain import Route
from ..dispatch import RouteQuery, workers_of
from ..routing_table import RoutingTable
from ..turned_away import TurnedAway, turned_away
from .decision import Decision


@dataclass(slots=True, eq=False)
class RequestPlacement:
    """The attempts of one request. Knows no token and no wait."""

    attempt: int = 0  # number of the current or last attempt; 0: never placed
    anew: int = 1  # number of the attempt that began with its prompt: the first, or the first on the top tier
    route: Route | None = None  # of the current or last attempt
    workers: tuple[str, ...] = ()  # workers of ``route`` while running, else empty
    decision: Decision | None = None  # the dispatcher's decision for that route, if one was asked
    numerics: str = ""  # of the workers of the current or last attempt, once they have said
    alone: bool = False  # the current attempt began as a suspect: its route is reserved for it
    risen: int = 0  # service classes by which it has risen in the current or last attempt
    counted: int = 0  # tokens still to compute, as last counted (overload, work of workers)
    no_drafter: str = ""  # why no tier or other model can draft for the current or last attempt
    avoid: str = ""  # route id not to take before ``avoid_until``
    avoid_until: float = 0.0
    refused: set[str] = field(default_factory=set)  # ids of routes whose workers cannot hold it
    room: int = 0  # tokens the next route must hold: the last worker had less than was known

    def start(self, route: Route, decision: Decision | None, alone: bool) -> None:
        """Begin the next attempt, on ``route``."""
        self.attempt += 1
        self.route, self.decision = route, decision
        self.workers = workers_of(route)
        self.alone = alone
        self.room = 0
        self.risen = 0  # the worker knows how long it has waited, and lets it rise again

    def leave(self) -> None:
        """End the attempt; its route is still known."""
        self.workers = ()
        self.alone = False

    def begin_anew(self) -> None:
        """Forget which routes could not hold it: what it is to run on next is another application."""
        self.anew = self.attempt + 1
        self.avoid = ""
        self.refused = set()
        self.room = 0
        self.numerics = ""

    def turn_away(self, wanted: RouteQuery, reason: str, now: float, table: RoutingTable) -> TurnedAway:
        """Note that its home returned the request; the result says where it may go next.

        The route is avoided for a while, unless the request waits for credit or room is about to come there.
        """
        assert self.route is not None, "who is given back had a route"
        verdict = turned_away(wanted, self.route.id, reason, table)
        self.room = verdict.room
        if verdict.comes:
            self.avoid = ""
        elif verdict.avoid:
            self.avoid = self.route.id
            self.avoid_until = now + verdict.avoid
        if verdict.refused:
            self.refused.add(self.route.id)
        return verdict
