"""The route switches of one gateway: which requests are *stale*, and what has come of them.

A switch moves requests because their routes end, since parameters are dropped or restored (``SwitchRoutes``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...control.route_switch import SwitchFigures, SwitchRoutes
from ...overload.moving_back import MovingBack
from .record import RequestRecord
from .route_claims import RouteClaim

KEPT = 8  # switches whose figures are kept


@dataclass(slots=True)
class Switch:
    """One switch in progress.

    stale: requests that neither run on a new route yet nor are being computed again. fresh: requests without KV, which
    lose nothing. left: requests that left at once. back: requests that move in turn. requests: the ones that were there.
    """

    order: SwitchRoutes
    figures: SwitchFigures
    fresh: frozenset[str]
    requests: frozenset[str]
    stale: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    back: MovingBack = field(default_factory=MovingBack)

    def holds(self, record: RequestRecord) -> bool:
        """Return whether one of its requests has an attempt on a route that this switch has ended."""
        route = record.placement.route if record.placement.workers and record.id in self.requests else None
        return route is not None and route.id in self.order.ended

    def note(self, claim: RouteClaim, now: float) -> None:
        """Count a stale request that waits for no pages any more."""
        figures, stall = self.figures, now - (claim.since if claim.left is None else claim.left)
        self.figures = replace(
            figures, copied=figures.copied + bool(claim.cached), pages=figures.pages + claim.pages,
            nbytes=figures.nbytes + claim.nbytes, recomputed=figures.recomputed + claim.recomputed,
            stall_sum=figures.stall_sum + stall, stall_worst=max(figures.stall_worst, stall),
        )  # fmt: skip


class Switches:
    """The last switches of one gateway (see the module); ``switching.py`` carries them out."""

    def __init__(self) -> None:
        self._switches: dict[int, Switch] = {}  # by number; the last ``KEPT``

    def begin(self, order: SwitchRoutes, on: Iterable[RequestRecord]) -> Switch | None:
        """Begin a switch of the requests ``on`` its ended routes; None for a repeated order, which is ignored."""
        if order.number in self._switches:
            return None
        requests = {record.id: record.progress.reached for record in on}
        fresh = frozenset(request for request, reached in requests.items() if not reached)
        made = Switch(order, SwitchFigures(order.number, len(requests) - len(fresh)), fresh, frozenset(requests))
        self._switches[order.number] = made
        while len(self._switches) > KEPT:
            del self._switches[next(iter(self._switches))]
        return made

    def all(self) -> Iterable[Switch]:
        return self._switches.values()

    def ready(self, claim: RouteClaim, now: float) -> Switch | None:
        """Note that a request waits for no pages any more: it runs on its new route, or is to be recomputed there.

        Return its switch if it was stale, so that others may have their turn.
        """
        switch = self._switches.get(claim.switch)
        request = claim.move.request
        if switch is None or request not in switch.stale:
            return None
        switch.stale.remove(request)
        switch.back.end(request)
        if request not in switch.fresh:
            switch.note(claim, now)
        return switch

    def over(self, claim: RouteClaim) -> None:
        """Forget a request that has ended, or that begins anew for another reason."""
        if (switch := self._switches.get(claim.switch)) is not None:
            switch.stale.discard(claim.move.request)
            switch.back.end(claim.move.request)

    def off(self, number: int, active: Mapping[str, RequestRecord], leaving: Container[str]) -> bool:
        """Return whether no attempt is left on the routes that this switch ended, as far as workers have answered."""
        switch = self._switches.get(number)
        if switch is None:
            return True
        return not any(map(switch.holds, active.values())) and not any(request in leaving for request in switch.left)

    def settled(self, number: int) -> bool:
        """Return whether no stale request of this switch waits."""
        return number not in self._switches or not self._switches[number].stale

    def figures(self, number: int) -> SwitchFigures:
        """Return the figures of one of the last switches, or empty ones for an older switch."""
        switch = self._switches.get(number)
        return SwitchFigures(number) if switch is None else switch.figures

    def check(self, claims: Mapping[str, RouteClaim]) -> None:
        """Raise AssertionError when an invariant is broken."""
        for number, switch in self._switches.items():
            moving = {request for request, claim in claims.items() if claim.switch == number}
            queued = {*switch.back.waiting}
            assert switch.stale <= moving | queued, f"of switch {number} a request is stale that does not move"
            assert switch.back.moving <= switch.stale - queued, f"of switch {number} a request has unneeded room"
