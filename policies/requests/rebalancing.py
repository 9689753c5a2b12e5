"""Rebalancing: queued requests move to another worker when one begins to serve.

A request is bound to a worker when it is dispatched. After a failover all are bound to the survivors, and the replacement
would stay idle while they wait there (the case that Llumnix reschedules for; Sun et al. 2024, section 3). Here requests
that no worker has begun are assigned anew, as if they arrived now in their order: none has KV, so leaving costs one
message. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.chain import Route
from .dispatch import RouteQuery, choose, fitting, staying, view_of, workers_of
from .poison import Quarantine
from .routing_table import RoutingTable


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request that waits at a worker, which has not begun it."""

    wanted: RouteQuery
    route: Route
    tokens: int  # tokens, as counted in the work of the route's workers


def rebalanced(waiting: Sequence[QueuedRequest], table: RoutingTable, quarantine: Quarantine) -> dict[str, Route]:
    """Return the requests that leave, with their new routes: through other workers, with less work ahead.

    ``waiting`` is in serving order. The first are assigned first, so they find the idle worker.
    """
    work: dict[str, int] = dict(table.work)
    for one in waiting:
        _charge(work, one.route, -one.tokens)
    found: dict[str, Route] = {}
    for one in waiting:
        route = _better(one, table, quarantine, work)
        _charge(work, route, one.tokens)
        if route is not one.route:
            found[one.wanted.request] = route
    return found


def _better(one: QueuedRequest, table: RoutingTable, quarantine: Quarantine, work: Mapping[str, int]) -> Route:
    """Return a better route, or its own: another route through its own workers would gain nothing."""
    own = workers_of(one.route)
    routes = [r for r in fitting(one.wanted, table) if r.id == one.route.id or set(own).isdisjoint(workers_of(r))]
    routes = staying(routes, one.wanted, table)
    view = view_of(one.wanted, table)
    found = choose(routes, work, quarantine.workers(), one.wanted.avoid, one.wanted.tokens, table.capacity, view=view)
    if found is None or found.id == one.route.id:
        return one.route
    here, there = (view.estimate(route, workers_of(route), work).total for route in (one.route, found))
    return found if there < here else one.route


def _charge(work: dict[str, int], route: Route, tokens: int) -> None:
    for worker in workers_of(route):
        work[worker] = work.get(worker, 0) + tokens
