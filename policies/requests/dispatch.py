"""Load balancing: a request takes a route that has room for it, of these the least loaded one that is whole.

Owns the comparison between routes and the rule that a suspect (``poison.py``) runs alone. The routes and the work on each
worker are the routing table's. Never looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from ..model.chain import Route
from .poison import Quarantine
from .routing_table import RoutingTable

UNKNOWN = 1 << 62  # tokens or bytes, until a route's workers have said


def outstanding(known: int, computed: int, total: int) -> int:
    """Tokens that a sequence still costs: those to prefill and those to decode.

    Args:
        known: tokens it has (prompt and emitted).
        computed: of these, how many have KV.
        total: most tokens it may come to, prompt and answer together.
    """
    return max(known - computed, 0) + max(total - known, 0)


def workers_of(route: Route) -> tuple[str, ...]:
    """The workers of a route in the order of its hops, each once."""
    hops = route.hops
    return (hops[0].worker,) if len(hops) == 1 else tuple(dict.fromkeys([hop.worker for hop in hops]))


def ahead(workers: Sequence[str], work: Mapping[str, int]) -> float:
    """Tokens that are computed before those of a newcomer. Of a pipeline with workers of its own each computes a part of
    every token: its work counts by its workers, or it would get the load of one replica."""
    return sum([work.get(worker, 0) for worker in workers]) / len(workers) ** 2


def choose(
    routes: Iterable[Route],
    work: Mapping[str, int],
    closed: Set[str] = frozenset(),
    avoid: str = "",
    tokens: int = 0,
    capacity: Mapping[str, int] | None = None,
) -> Route | None:
    """The route on which least is in excess of memory; of equals the one that goes least out of its way, then that with the
    least work ahead; ties by worker names, then by id.

    Out of its way goes who passes more workers than another route through one of them does: through a block that was
    deployed for a burst. So it is taken while the short one would have to wait.

    Args:
        routes: whole routes of the application.
        work: tokens outstanding on each worker (absent: none).
        closed: workers that are kept for a suspect; no route through them is taken.
        avoid: id of a route not to take (its home has just given the request back).
        tokens: most that the request may come to.
        capacity: route id -> tokens that its workers hold (absent: any).
    """
    best: Route | None = None
    best_key: tuple[int, int, float, tuple[str, ...], str] | None = None
    rooms: Mapping[str, int] = capacity or {}
    ways = [(route, workers_of(route)) for route in routes]
    shortest: dict[str, int] = {}  # by worker
    for _, workers in ways:
        for worker in workers:
            shortest[worker] = min(shortest.get(worker, len(workers)), len(workers))
    for route, workers in ways:
        if route.id == avoid or not closed.isdisjoint(workers):
            continue
        excess = max([work.get(worker, 0) for worker in workers]) + tokens - rooms.get(route.id, UNKNOWN)
        detour = len(workers) - min([shortest[worker] for worker in workers])
        key = (excess if excess > 0 else 0, detour, ahead(workers, work), workers, route.id)
        if best_key is None or key < best_key:
            best, best_key = route, key
    return best


@dataclass(frozen=True, slots=True)
class Wanted:
    """What decides where a request goes."""

    request: str
    application: str
    tokens: int  # most that it may come to, prompt and answer together
    suspect: bool = False
    avoid: str = ""  # id of a route not to take now
    refused: Set[str] = frozenset()  # ids of routes whose workers have said that they cannot hold it
    room: int = 0  # tokens that a route must hold first, where that is more: with fewer its worker has given it back


def fitting(wanted: Wanted, table: RoutingTable) -> list[Route]:
    """Routes whose workers can hold the request, as far as is known."""
    routes = [route for route in table.routes.get(wanted.application, []) if route.id not in wanted.refused]
    return [route for route in routes if table.capacity.get(route.id, UNKNOWN) >= _need(wanted, route, table)]


def _need(wanted: Wanted, route: Route, table: RoutingTable) -> int:
    """Tokens that a route must hold: never more than it ever will, but for a request that is longer than that."""
    most = table.most.get(route.id, 0)
    outdated = wanted.room >= UNKNOWN > most  # it was given back before the worker had said what parameters leave
    return wanted.tokens if outdated else max(wanted.tokens, min(wanted.room, most))


def lacking_room(wanted: Wanted, table: RoutingTable) -> int:
    """Tokens that one of the routes must come to hold, which other applications are unloaded for. 0: one does; or none ever
    will, and a worker says why not."""
    if not table.most or fitting(wanted, table):
        return 0
    routes = [route for route in table.routes.get(wanted.application, []) if route.id not in wanted.refused]
    needs = [_need(wanted, route, table) for route in routes if table.most.get(route.id, 0) >= wanted.tokens]
    need = min(needs, default=0)
    return need if need < UNKNOWN else wanted.tokens


def open_routes(wanted: Wanted, table: RoutingTable, quarantine: Quarantine) -> list[Route]:
    """Those that a request that is no suspect may take now; a worker says why it cannot hold what fits nowhere."""
    closed = quarantine.workers()
    routes = fitting(wanted, table) or table.routes.get(wanted.application, [])
    return [route for route in routes if route.id != wanted.avoid and closed.isdisjoint(workers_of(route))]


def dispatch(wanted: Wanted, table: RoutingTable, quarantine: Quarantine, ordinary: bool) -> Route | None:
    """A route for a waiting request, if there is one now.

    A suspect gets a route of its own and waits until that is idle. While ``ordinary`` requests exist only one route is
    kept that way, so that suspects cannot lock everybody out.
    """
    kept = quarantine.release(wanted.request)
    routes = table.routes.get(wanted.application, [])
    fits = fitting(wanted, table)
    capacity = table.capacity if fits else None
    fits = fits or routes  # a worker says why not
    if not wanted.suspect:
        return choose(fits, table.work, quarantine.workers(), wanted.avoid, wanted.tokens, capacity)
    if not routes or (ordinary and quarantine.routes):
        return None
    if kept not in fits or kept is None or kept.id == wanted.avoid:
        kept = choose(fits, table.work, quarantine.workers(), wanted.avoid)
    if kept is None:
        return None
    quarantine.keep(wanted.request, kept)
    return kept if is_idle(kept, table.on) else None


def is_idle(route: Route, running: Mapping[str, Set[str]]) -> bool:
    """No worker of the route runs any request, so that a suspect sent there can hurt only itself."""
    return not any(running.get(worker) for worker in workers_of(route))
