"""Switches: requests move because their routes end, since parameters are dropped or restored (``SwitchRoutes``).

When parameters are restored, requests move in turn (``policies/overload/moving_back.py``) and decode on meanwhile. When
parameters are dropped, every request leaves at once and pauses until its new attempt begins. Owns which requests are
*stale* and their outcome; ``request_moves.py`` performs each move.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from ...control.route_switch import SwitchFigures, SwitchRoutes
from ...model.chain import Route
from ...overload.moving_back import MovingBack
from ..moving import deal
from .messages import Move
from .move_in_progress import MovedParts, MoveInProgress
from .record import RequestRecord
from .request_pauses import RequestPauses

KEPT = 8  # switches whose figures are kept
UNKNOWN = 1 << 60  # assumed capacity, in tokens, of a route that has not reported


class Mover(Protocol):
    """The parts of ``RequestMoves`` that switches need."""

    def to(self, record: RequestRecord, found: Route) -> Move: ...

    def begin(self, move: Move, now: float, switch: int) -> None: ...

    def left(self, record: RequestRecord) -> None: ...


@dataclass(slots=True)
class Switch:
    """One switch in progress.

    stale: requests that neither run on a new route yet nor are being computed again. fresh: requests without KV, which
    lose nothing. left: requests that left at once. back: requests that move in turn.
    """

    order: SwitchRoutes
    figures: SwitchFigures
    fresh: frozenset[str]
    stale: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    back: MovingBack = field(default_factory=MovingBack)


class RouteSwitches:
    """The switches of one gateway (see the module). ``state``: the owner of the requests."""

    def __init__(self, state: MovedParts, moving: Mover, pausing: RequestPauses) -> None:
        self._state = state
        self._moving = moving
        self._pausing = pausing
        self._switches: dict[int, Switch] = {}  # by number; the last ``KEPT``

    def begin(self, order: SwitchRoutes, now: float) -> None:
        """Begin a switch. A repeated order is ignored."""
        if order.number in self._switches:
            return
        state, ended = self._state, frozenset(order.ended)
        on = (r for r in state.active.values() if r.workers and r.route is not None and r.route.id in ended)
        leave = sorted(on, key=lambda record: record.key)
        fresh = frozenset(record.id for record in leave if not record.reached)
        figures = SwitchFigures(order.number, len(leave) - len(fresh))
        switch = self._switches[order.number] = Switch(order, figures, fresh)
        while len(self._switches) > KEPT:
            del self._switches[next(iter(self._switches))]
        dealt = deal([record.wanted(now) for record in leave if not record.deaths.suspect], order.to, state.table)
        for record in leave:
            self._moving.left(record)
            route = dealt.get(record.id)
            if route is not None:
                if order.dropped:  # one without pages may wait long for memory, but the switch does not wait for it
                    switch.left.add(record.id)
                    switch.stale |= {record.id} - fresh
                    self._pausing.begin(self._moving.to(record, route), now, order.number)
                else:
                    switch.stale.add(record.id)
                    capacity = state.table.capacity.get(route.id, UNKNOWN) // order.gateways
                    switch.back.add(record.id, route, len(record.tokens), capacity)
            elif order.dropped:
                record.note(now, "not_moved", reason="the parameters of its route were dropped, and no other can take it")
                state.restart(record, now)
        self._next(switch, now)

    def _next(self, switch: Switch, now: float) -> None:
        """Start the moves whose turn it is. Requests that are no longer on an ending route are dropped from the queue."""
        active, tokens = self._state.active, dict[str, int]()
        for request in switch.back.waiting:
            record = active.get(request)
            if record is None or not record.workers or record.route is None or record.route.id not in switch.order.ended:
                switch.back.end(request)
                switch.stale.discard(request)
            else:
                tokens[request] = len(record.tokens)
        for request, route in switch.back.begin(tokens):
            self._moving.left(active[request])
            self._moving.begin(self._moving.to(active[request], route), now, switch.order.number)

    def tick(self, now: float) -> None:
        """Advance all switches: some requests may have ended, so that others have their turn."""
        for switch in self._switches.values():
            self._next(switch, now)

    def ready(self, under: MoveInProgress, now: float) -> None:
        """Note that a stale request waits for no pages any more: it runs on its new route, or is to be recomputed there."""
        switch = self._switches.get(under.switch)
        if switch is None or under.move.request not in switch.stale:
            return
        switch.stale.remove(under.move.request)
        switch.back.end(under.move.request)
        if under.move.request not in switch.fresh:
            figures, stall = switch.figures, now - (under.since if under.left is None else under.left)
            switch.figures = replace(
                figures, copied=figures.copied + bool(under.cached), pages=figures.pages + under.pages,
                nbytes=figures.nbytes + under.nbytes, recomputed=figures.recomputed + under.recomputed,
                stall_sum=figures.stall_sum + stall, stall_worst=max(figures.stall_worst, stall),
            )  # fmt: skip
        self._next(switch, now)

    def over(self, under: MoveInProgress) -> None:
        """Forget a request that has ended, or that begins anew for another reason."""
        if (switch := self._switches.get(under.switch)) is not None:
            switch.stale.discard(under.move.request)
            switch.back.end(under.move.request)

    def off(self, number: int) -> bool:
        """Return whether no attempt is left on the routes that this switch ended, as far as workers have answered."""
        switch = self._switches.get(number)
        if switch is None:
            return True
        on = (r for r in self._state.active.values() if r.workers and r.route is not None)
        return not any(r.route is not None and r.route.id in switch.order.ended for r in on) and (
            switch.left.isdisjoint(self._pausing.leaving)
        )

    def settled(self, number: int) -> bool:
        """Return whether no stale request of this switch waits."""
        return number not in self._switches or not self._switches[number].stale

    def figures(self, number: int) -> SwitchFigures:
        """Return the figures of one of the last switches, or empty ones for an older switch."""
        switch = self._switches.get(number)
        return SwitchFigures(number) if switch is None else switch.figures

    def check(self, moves: dict[str, MoveInProgress]) -> None:
        """Raise AssertionError when an invariant is broken."""
        for number, switch in self._switches.items():
            moving = {request for request, under in moves.items() if under.switch == number}
            queued = {*switch.back.waiting}
            assert switch.stale <= moving | queued, f"of switch {number} a request is stale that does not move"
            assert switch.back.moving <= switch.stale - queued, f"of switch {number} a request has unneeded room"
