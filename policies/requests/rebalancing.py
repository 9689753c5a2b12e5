"""Rebalancing: where requests that wait in the queues of workers go when another worker begins to serve.

A request is bound to a worker when it is dispatched. After a failover all are bound to the survivors, and the replacement
would stay idle while they wait there (what Llumnix reschedules for; Sun et al. 2024, section 3). Here those that nobody has
begun are dealt again, as if they came now in their order: none has KV, so that leaving costs one message. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.chain import Route
from .dispatch import Wanted, ahead, choose, fitting, workers_of
from .poison import Quarantine
from .routing_table import RoutingTable


@dataclass(frozen=True, slots=True)
class Bound:
    """A request that waits at a worker, which has not begun it."""

    wanted: Wanted
    route: Route
    tokens: int  # as they are counted in the work of the route's workers


def rebalanced(waiting: Sequence[Bound], table: RoutingTable, quarantine: Quarantine) -> dict[str, Route]:
    """Of requests in the order in which they are to be served those that leave, and for where: other workers, with less to
    do before them. Those that go first are dealt first, so they find the idle worker."""
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


def _better(one: Bound, table: RoutingTable, quarantine: Quarantine, work: Mapping[str, int]) -> Route:
    """Its own route unless another one is really better: a route through workers of its own would gain it nothing."""
    own = workers_of(one.route)
    routes = [r for r in fitting(one.wanted, table) if r.id == one.route.id or set(own).isdisjoint(workers_of(r))]
    found = choose(routes, work, quarantine.workers(), one.wanted.avoid, one.wanted.tokens, table.capacity)
    if found is None or found.id == one.route.id:
        return one.route
    return found if ahead(workers_of(found), work) < ahead(own, work) else one.route


def _charge(work: dict[str, int], route: Route, tokens: int) -> None:
    for worker in workers_of(route):
        work[worker] = work.get(worker, 0) + tokens
