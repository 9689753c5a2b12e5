"""Switches of routes: requests move because their routes end, since parameters are dropped or restored (``SwitchRoutes``).

When parameters are restored, requests move in turn (``policies/overload/moving_back.py``) and decode on meanwhile. When
parameters are dropped, every request leaves at once and pauses until its new attempt begins.
"""

from __future__ import annotations

from ...control.route_switch import SwitchRoutes
from ..moving import deal
from . import absences
from .chain_switching import arrived as switched
from .copying import move_to
from .lifecycle import LifeEvent, LifeStage
from .messages import ExportUnsent, HoldAnswered, Move, Vacate
from .moving import begin, copied, time_passes, vacate
from .parts import BookParts
from .pausing import held, pause, stay
from .pausing import time_passes as pauses_wait
from .route_claims import ClaimNews, RouteClaim, places
from .settlement import RequestClaim
from .settling import settle
from .switches import Switch

UNKNOWN = 1 << 60  # assumed capacity, in tokens, of a route that has not reported


def handle_move(parts: BookParts, event: Move | Vacate | SwitchRoutes | ExportUnsent | HoldAnswered, now: float) -> None:
    """Apply an event about moves: one request moves, all on a worker or on ending routes move, or workers have answered."""
    match event:
        case Move():
            begin(parts, event, now)
        case Vacate(worker):
            vacate(parts, worker, now)
        case SwitchRoutes():
            switch_routes(parts, event, now)
        case ExportUnsent(worker, news):
            parts.claims.accept_export(news, worker)
            absences.accept(parts, news, worker)
            settle_moves(parts, now)
        case HoldAnswered():
            held(parts, event, now)


def switch_routes(parts: BookParts, order: SwitchRoutes, now: float) -> None:
    """Begin a switch. A repeated order is ignored."""
    table, ended = parts.table, frozenset(order.ended)
    on = (record for record in parts.active.values() if record.placement.workers)
    ends = (record for record in on if record.placement.route is not None and record.placement.route.id in ended)
    leave = sorted(ends, key=lambda record: record.key)
    switch = parts.switches.begin(order, leave)
    if switch is None:
        return
    dealt = deal([record.wanted(now) for record in leave if not record.deaths.suspect], order.to, table)
    for record in leave:
        stay(parts, record)
        route = dealt.get(record.id)
        if route is not None and order.dropped:
            switch.left.add(record.id)  # one without pages may wait long for memory, but the switch does not wait for it
            switch.stale |= {record.id} - switch.fresh
            pause(parts, move_to(parts, record, route), now, order.number)
        elif route is not None:
            switch.stale.add(record.id)
            capacity = table.capacity.get(route.id, UNKNOWN) // order.gateways
            switch.back.add(record.id, route, len(record.progress.tokens), capacity)
        elif order.dropped or record.stage is LifeStage.PAUSED:  # one that pauses runs nowhere until then
            end = "the parameters of its route were dropped" if order.dropped else "its next route has ended"
            record.history.note(now, "not_moved", reason=f"{end}, and no other can take it")
            settle(parts, RequestClaim(record, LifeEvent.RESTART), now)
    _start_next(parts, switch, now)


def settle_moves(parts: BookParts, now: float) -> None:
    """Carry out what workers have reported about claims on routes, in order."""
    while parts.claims.due:
        claim, news = parts.claims.due.pop(0)
        if news is ClaimNews.COPIED or news is ClaimNews.FAILED:
            copied(parts, claim, failed=news is ClaimNews.FAILED, now=now)
            continue
        switch = parts.switches.ready(claim, now)
        if switch is not None:
            _start_next(parts, switch, now)
        if news is ClaimNews.ARRIVED:
            (switched if claim.other_chain else _arrived)(parts, claim, now)


def tick(parts: BookParts, now: float) -> None:
    """Advance what moves: late copies first, then switches whose requests have ended, then pauses that lack room."""
    time_passes(parts, now)
    for switch in parts.switches.all():
        _start_next(parts, switch, now)
    pauses_wait(parts, now)


def _arrived(parts: BookParts, claim: RouteClaim, now: float) -> None:
    """End a move: the first token has come from the new route."""
    parts.claims.figures.outcomes["copied" if claim.cached else "recomputed"] += 1
    record = parts.active[claim.move.request]
    assert record.placement.route is not None, "who runs has a route"
    why = {"reason": "; ".join(claim.reasons)} if claim.reasons else {}
    paused = now - claim.left if claim.left is not None and claim.reached else 0.0
    record.history.note(
        now, "moved", source=places(claim.source), target=places(record.placement.route), pages=claim.pages,
        bytes=claim.nbytes, recomputed=claim.recomputed, paused=paused, **why,
    )  # fmt: skip


def _start_next(parts: BookParts, switch: Switch, now: float) -> None:
    """Start the moves whose turn it is. Requests that are no longer on an ending route are dropped from the queue."""
    tokens = dict[str, int]()
    for request in switch.back.waiting:
        record = parts.active.get(request)
        if record is None or not switch.holds(record):
            switch.back.end(request)
            switch.stale.discard(request)
        else:
            tokens[request] = len(record.progress.tokens)
    for request, route in switch.back.begin(tokens):
        record = parts.active[request]
        if route.id not in {one.id for one in parts.table.routes.get(route.application, ())}:  # it has died meanwhile
            switch.back.end(request)
            switch.stale.discard(request)
            continue
        stay(parts, record)
        begin(parts, move_to(parts, record, route), now, switch.order.number)
