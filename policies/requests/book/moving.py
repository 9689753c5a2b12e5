"""Requests that move from one route to another while they run.

While its pages are copied a request runs on where it is. Then a new attempt with all of its tokens begins at the new home,
finds the pages there, and computes the rest. A request that is not decoding yet begins there at once: it prefills from the
front, while its pages arrive from the back. Whatever happens to the copy, the attempt is what counts: nothing is lost, and
no death is counted.
"""

from __future__ import annotations

from ..dispatch import workers_of
from ..moving import PATIENCE, Unmovable, begins_there, copies_again, destination, overdue
from ..rebalancing import QueuedRequest, rebalanced
from ..refusal import Refusal, RequestRefused
from .copying import export, move_to
from .lifecycle import LifeEvent
from .messages import Move
from .parts import BookParts
from .pausing import give_up, hand_over, stay
from .record import RequestRecord
from .route_claims import RouteClaim, places
from .settlement import RequestClaim
from .settling import settle


def plan(parts: BookParts, request: str, worker: str, route: str, now: float) -> Move:
    """Return the move of a running request. Raises RequestRefused if it cannot move there."""
    record = parts.active[request]
    placement = record.placement
    claim = parts.claims.open.get(request)
    if claim is not None:
        where = claim.move.route.home
        raise RequestRefused(Refusal.CONFLICT, f"request {request!r} is moving to worker {where} already", param="id")
    if placement.route is None or not placement.workers:
        message = f"request {request!r} waits for a worker: there is nothing to move yet"
        raise RequestRefused(Refusal.CONFLICT, message, param="id")
    work = parts.claims.work(parts.table.work, parts.active)
    found = destination(record.wanted(now), placement.route, parts.table, parts.quarantine, work, worker=worker, route=route)
    if isinstance(found, Unmovable):
        message = f"request {request!r} cannot be moved: {found.message}"
        raise RequestRefused(Refusal.CONFLICT, message, param=found.param or "id")
    return move_to(parts, record, found)


def begin(parts: BookParts, move: Move, now: float, switch: int = 0) -> None:
    """Start copying pages while the request runs on. Without pages, or before it decodes, it moves now."""
    record = parts.active[move.request]
    source = record.placement.route
    assert source is not None, "who runs has a route"
    claim = parts.claims.claim(move, source, now, switch)
    ends = {"source": places(source), "target": places(move.route)}
    record.history.note(now, "moving", **ends, pages=move.begun.pages)
    export(parts, claim)
    if begins_there(copying=bool(claim.waiting), decodes=record.progress.decodes):
        hand_over(parts, claim, now)
    else:
        record.apply(LifeEvent.MOVE)


def vacate(parts: BookParts, worker: str, now: float) -> None:
    """Move every request away from a worker."""
    on = [parts.active[request] for request in parts.table.on.get(worker, ())]
    for record in sorted(on, key=lambda record: record.key):
        claim = parts.claims.open.get(record.id)
        if claim is not None and worker not in workers_of(claim.move.route):
            continue  # it is leaving already
        if claim is not None and not claim.pauses:
            stay(parts, record)  # its move to this worker is off; it continues where it is
        try:
            begin(parts, plan(parts, record.id, "", "", now), now)
        except RequestRefused as refused:  # it is moving already, or must wait until it is given back
            record.history.note(now, "not_moved", reason=refused.message)


def rebalance(parts: BookParts, now: float) -> None:
    """Reroute requests that no worker has begun to a newly opened route with less work ahead of them."""
    table = parts.table
    opened = {name for name in table.opened if len(table.routes.get(name, ())) > 1}
    table.opened.clear()
    if not opened:
        return
    here = [record for record in parts.active.values() if record.application in opened and _unbegun(parts, record)]
    here.sort(key=lambda record: record.key)
    waiting = [
        QueuedRequest(record.wanted(now), route, record.placement.counted)
        for record in here
        if (route := record.placement.route) is not None
    ]
    for request, route in rebalanced(waiting, table, parts.quarantine).items():
        record = parts.active[request]
        source = record.placement.route
        assert source is not None, "who waits at a worker has a route"
        ends = {"source": places(source), "target": places(route)}
        record.history.note(now, "rerouted", **ends, reason="another worker serves, with less to do")
        submit = settle(parts, RequestClaim(record, LifeEvent.REROUTE, route=route), now)
        assert submit is not None, "who is rerouted has an attempt"
        parts.emit(submit)


def _unbegun(parts: BookParts, record: RequestRecord) -> bool:
    """Return whether it waits at a worker, as far as is known here.

    Suspects and offline requests have their own rules.
    """
    placement = record.placement
    waits = bool(placement.workers) and record.progress.waits
    return waits and not (placement.alone or record.offline or record.id in parts.claims.open)


def copied(parts: BookParts, claim: RouteClaim, *, failed: bool, now: float) -> None:
    """Go on after a round of copies: with another round, or on the new route."""
    if copies_again(claim.rounds, failed=failed):
        export(parts, claim)
    if begins_there(copying=bool(claim.waiting), decodes=True):
        hand_over(parts, claim, now)


def lost(parts: BookParts, worker: str, now: float) -> None:
    """Handle the death of a worker: moves to it are given up, and exports that it owed will not come."""
    for claim in list(parts.claims.open.values()):
        if claim.left is None and worker in workers_of(claim.move.route):
            give_up(parts, claim, f"worker {worker} died", now)


def time_passes(parts: BookParts, now: float) -> None:
    """Check timeouts: a copy that takes too long is not waited for."""
    for claim in list(parts.claims.open.values()):
        if claim.handed_over is None and overdue(claim.since, now):
            claim.reasons.append(f"copying took longer than {PATIENCE:g} s")
            hand_over(parts, claim, now)
