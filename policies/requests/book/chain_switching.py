"""Requests that go over to another chain while they run, at a sweep boundary, as a move goes over.

A new attempt with all of the request's tokens begins on the other route. It finds the pages of its lineage there, and
computes the rest. Each answer's switches are limited, and lead to a chain that is as accurate at least.
"""

from __future__ import annotations

from dataclasses import replace

from ...model.chain import Route
from ..chain_switch import gains, stays
from ..dispatch import RouteQuery, compared, open_routes, view_of, workers_of
from ..standing import RouteEstimate, queue_time
from .copying import move_to
from .lifecycle import LifeEvent
from .parts import BookParts
from .record import RequestRecord
from .route_claims import RouteClaim, places
from .settlement import RequestClaim
from .settling import settle
from .variants import query, vary

LOADED = "its model has been loaded: "


def time_passes(parts: BookParts, now: float) -> None:
    """Look for routes that are worse than others of the same model for too long; requests leave them.

    The work is proportional to the routes of models with variants, and to the requests on the routes that are left.
    """
    table = parts.table
    if not parts.chains.limit or not table.variants:
        return
    for request in [*parts.capacity_waits.bridging]:
        _go_back(parts, parts.active[request], now)
    paces = table.paces.measured
    for application, variants in table.variants.items():
        routes = [route for name in (application, *variants) for route in table.routes.get(name, ())]
        times = {route.id: queue_time(workers_of(route), table.work, paces) for route in routes}
        queues = {}
        for route in routes:
            others = [times[other.id] for other in routes if other.application != route.application]
            if others and times[route.id]:
                queues[route.id] = times[route.id], min(others)
        for id in parts.chains.worse(application, queues, now):
            _relieve(parts, next(route for route in routes if route.id == id), now)


def _relieve(parts: BookParts, route: Route, now: float) -> None:
    """Switch the requests on a route that gain by it, the latest first: the first are nearly done."""
    on = [parts.active[request] for request in parts.table.on.get(route.home, ())]
    for record in sorted(on, key=lambda record: record.key, reverse=True):
        if record.placement.route is not None and record.placement.route.id == route.id and may_switch(parts, record):
            found = _better(parts, record, route, now)
            if found is not None:
                switch(parts, record, *found, now)


def _go_back(parts: BookParts, record: RequestRecord, now: float) -> None:
    """Switch a request that bridges to its own application once that is loaded and has room.

    It stays for good if the rest of its answer is estimated to be there before the own chain could go on with it, or if it
    may switch no more.
    """
    table, own = parts.table, record.generation.application
    here = record.placement.route
    if not table.routes.get(own) or here is None:
        return
    if sum(not one.forced for one in record.history.switches) >= parts.chains.limit:
        parts.capacity_waits.drop(record.id)
        return
    if not may_switch(parts, record):
        return
    wanted = query(parts, record, now, anywhere=True)
    routes = [route for route in open_routes(wanted, table, parts.quarantine) if route.application == own]
    best = min(
        (one for one in compared(wanted, routes, table) if not one.standing.short), key=lambda one: one.key, default=None
    )
    if best is None:
        return
    stay, go = _here(parts, record, wanted, here).total, _alone(parts, record, wanted, best.route)
    if stays(stay, go.start):
        parts.capacity_waits.drop(record.id)
    else:
        switch(parts, record, best.route, stay, go.total, now, LOADED)


def may_switch(parts: BookParts, record: RequestRecord) -> bool:
    """Return whether a running request may go over to another chain now."""
    taken = sum(not one.forced for one in record.history.switches)
    runs = bool(record.placement.workers) and record.id not in parts.claims.open and not record.placement.alone
    return runs and record.varies and not record.progress.unscored and taken < parts.chains.limit


def _better(parts: BookParts, record: RequestRecord, route: Route, now: float) -> tuple[Route, float, float] | None:
    """Return the best route of another chain that is as accurate at least, and the estimates here and there.

    None: there is none, or it gains too little. The request's own work counts once, in its estimates.
    """
    table = parts.table
    wanted = query(parts, record, now, anywhere=True)
    rank = table.ranks.get(route.application, 0)
    routes = [
        other
        for other in open_routes(wanted, table, parts.quarantine)
        if other.application != route.application and table.ranks.get(other.application, 0) <= rank
    ]
    found = [one for one in compared(wanted, routes, table) if not one.standing.short]
    best = min(found, key=lambda one: one.key, default=None)
    if best is None:
        return None
    stay, go = _here(parts, record, wanted, route).total, best.estimate.total
    return (best.route, stay, go) if gains(stay, go) else None


def _here(parts: BookParts, record: RequestRecord, wanted: RouteQuery, route: Route) -> RouteEstimate:
    """Return the estimate of the rest of a request's answer on the route where it is."""
    return _alone(parts, record, replace(wanted, cached={route.id: record.progress.computed}), route)


def _alone(parts: BookParts, record: RequestRecord, wanted: RouteQuery, route: Route) -> RouteEstimate:
    """Return the estimate of a running request on a route; its own work is not ahead of it."""
    workers, own = workers_of(route), dict.fromkeys(record.placement.workers, record.placement.counted)
    work = {worker: parts.table.work.get(worker, 0) - own.get(worker, 0) for worker in workers}
    return view_of(wanted, parts.table).estimate(route, workers, work)


def switch(
    parts: BookParts, record: RequestRecord, route: Route, stay: float, go: float, now: float, cause: str = ""
) -> None:
    """Begin an attempt with all of a request's tokens on the route of another chain. cause: besides the estimates."""
    source = record.placement.route
    assert source is not None, "who runs has a route"
    claim = parts.claims.claim(move_to(parts, record, route), source, now)
    claim.left = claim.handed_over = now
    claim.reached = record.progress.reached
    unit = " s" if view_of(query(parts, record, now, anywhere=True), parts.table).paces.unit else " tokens"
    why = f"{cause}an estimate of {go:.4g}{unit} against {stay:.4g}{unit}"
    vary(parts, record, route.application, now, why, (stay, go))
    submit = settle(parts, RequestClaim(record, LifeEvent.HAND_OVER, route=route), now)
    assert submit is not None, "who goes on has an attempt"
    parts.emit(submit)


def arrived(parts: BookParts, claim: RouteClaim, now: float) -> None:
    """Note the outcome of a switch: the first token has come from the other chain."""
    record = parts.active[claim.move.request]
    paused = now - claim.left if claim.left is not None and claim.reached else 0.0
    outcome = {"cached": claim.cached, "recomputed": claim.recomputed, "paused": paused}
    record.history.note(now, "switched", source=places(claim.source), target=places(claim.move.route), **outcome)
    if record.history.switches:
        record.history.switches[-1].outcome = outcome
