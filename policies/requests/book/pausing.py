"""Paused requests: the parameters of their route are dropped, and their KV moves to the next route's workers.

A request leaves its route at once, and workers keep its pages (``HoldPages``). Requests with the shortest stall exchange
their pages first, as many at a time as there is room for (``policies/overload/exchange_order.py``). Then the attempt on
the new route begins. It begins without pages if a copy fails, comes late, or finds no room for too long. Hands claims over
whether a request paused or ran on.
"""

from __future__ import annotations

from dataclasses import replace

from ...overload.exchange_order import StaleSequence
from ..dispatch import workers_of
from ..moving import stuck
from .copying import export, hold, page_bytes, targets_of
from .lifecycle import LifeEvent, LifeStage
from .messages import HoldAnswered, Move
from .parts import BookParts
from .record import RequestRecord
from .route_claims import RouteClaim, places
from .settlement import RequestClaim
from .settling import settle, unhold, withdraw


def pause(parts: BookParts, move: Move, now: float, switch: int) -> None:
    """Take a request off its route now."""
    record = parts.active[move.request]
    source, reached = record.placement.route, record.progress.reached
    assert source is not None, "who runs has a route"
    claim = parts.claims.claim(move, source, now, switch)
    ends = {"source": places(source), "target": places(move.route)}
    record.history.note(now, "paused" if reached else "rerouted", **ends, reason="parameters were dropped")
    claim.reached, claim.left = reached, now
    claim.submit = settle(parts, RequestClaim(record, LifeEvent.LEAVE, route=move.route), now)
    parts.pauses.leave(record.id, record.placement.attempt, now)
    hold(parts, claim, source, workers_of(source)[::-1], expects=False)  # home last: it knows the others


def held(parts: BookParts, event: HoldAnswered, now: float) -> None:
    """Handle the answer of workers that keep the pages, or expect them."""
    pauses = parts.pauses
    pauses.left(event.request, event.attempt)
    claim = parts.claims.open.get(event.request)
    if claim is None or not claim.pauses or claim.move.attempt + 1 != event.attempt:
        return
    sequence = _sequence(parts, claim)
    if not sequence.transfers:
        hand_over(parts, claim, now)
    elif not event.expects:
        pauses.order.add(sequence)
    elif event.room:
        pauses.stirred = now
        export(parts, claim)
    elif event.request in pauses.order.moving:
        pauses.order.done(event.request)
        pauses.order.add(sequence)
        pauses.crowd(sequence.pages)
    _ask_next(parts)


def hand_over(parts: BookParts, claim: RouteClaim, now: float) -> None:
    """Start the attempt on the new route, unless that route is gone."""
    move = claim.move
    record = parts.active[move.request]
    routes = parts.table.routes.get(move.route.application, [])
    route = next((one for one in routes if one.id == move.route.id), None)
    if route is None:
        give_up(parts, claim, f"route {move.route.id} is gone", now)
    elif claim.submit is not None:
        claim.handed_over = now
        _resume(parts, claim, record, now)
    else:
        claim.left = claim.handed_over = now
        claim.reached = record.progress.reached
        submit = settle(parts, RequestClaim(record, LifeEvent.HAND_OVER, route=route), now)
        assert submit is not None, "who goes on has an attempt"
        parts.emit(submit)


def give_up(parts: BookParts, claim: RouteClaim, why: str, now: float) -> None:
    """Give a move up: a request that has paused starts on any route, any other one stays where it is."""
    record = parts.active[claim.move.request]
    record.history.note(now, "not_moved", reason=why)
    if claim.pauses:
        settle(parts, RequestClaim(record, LifeEvent.RESTART), now)
    else:
        stay(parts, record)


def stay(parts: BookParts, record: RequestRecord) -> None:
    """Withdraw a request's claim on another route, if it has one; it goes on where it is."""
    withdraw(parts, record)
    if record.stage is LifeStage.MOVING:
        record.apply(LifeEvent.STAY)


def lost(parts: BookParts, worker: str, now: float) -> None:
    """Handle the death of a worker: pages from it will not come.

    A request whose new route includes the worker begins anew anyway.
    """
    for sequence in parts.pauses.order.lost(worker):
        claim = parts.claims.open[sequence.request]
        if claim.pauses and worker not in workers_of(claim.move.route):
            _compute(parts, claim, f"worker {worker} died", now)


def time_passes(parts: BookParts, now: float) -> None:
    """Check for room that has come; where all wait for one another's memory, recompute one request to free some."""
    pauses = parts.pauses
    pauses.time_passes()
    if pauses.order.left and not pauses.order.moving and stuck(pauses.stirred, now):
        sequence = pauses.order.stuck()
        assert sequence is not None, "a request waits, and none moves"
        _compute(parts, parts.claims.open[sequence.request], "there was no room for its pages", now)
    _ask_next(parts)


def _sequence(parts: BookParts, claim: RouteClaim) -> StaleSequence:
    """Return the KV that a request still has to move."""
    sizes: dict[tuple[str, str], int] = {}
    pages = claim.move.begun.pages
    for worker, targets in targets_of(parts, claim.source, claim.move.route).items() if pages else ():
        for to in targets:
            link = worker, to.worker
            sizes[link] = sizes.get(link, 0) + pages * page_bytes(parts, claim.move.route, to)
    return StaleSequence(claim.move.request, sizes, {there: pages for _, there in sizes})


def _ask_next(parts: BookParts) -> None:
    """Ask for memory for the requests whose turn it is."""
    for sequence in parts.pauses.order.next(parts.pauses.room(parts.table.alive)):
        claim = parts.claims.open[sequence.request]
        hold(parts, claim, claim.move.route, sorted(sequence.pages), expects=True)


def _resume(parts: BookParts, claim: RouteClaim, record: RequestRecord, now: float) -> None:
    """Send the attempt of a request that has paused, with its pages or without."""
    assert claim.submit is not None, "who does not pause begins in another way"
    left, waited = parts.timeouts.left(record, now), record.history.waiting_time(now)
    unhold(parts, claim, {*workers_of(claim.source)} - {*workers_of(claim.move.route)})
    record.apply(LifeEvent.HAND_OVER)
    parts.emit(replace(claim.submit, submission=replace(claim.submit.submission, timeout=left, waited=waited)))
    parts.pauses.gone(record.id, now)
    _ask_next(parts)


def _compute(parts: BookParts, claim: RouteClaim, why: str, now: float) -> None:
    """Start a request without its pages, as soon as there is memory for it on its new route.

    The memory that its pages took goes to waiting requests. It is computed again, so its switch waits for it no longer.
    """
    claim.reasons.append(why)
    unhold(parts, claim, {*workers_of(claim.source), *workers_of(claim.move.route)})
    hand_over(parts, claim, now)
    parts.switches.ready(claim, now)
