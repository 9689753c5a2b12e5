"""Load balancing: the replica or pipeline (whole route) whose workers get a request: the least loaded with room for it.

Owns the comparison between routes and the rule that a suspect (``poison.py``) runs alone. The routes and the work on each
worker are in the routing table. Never looks at a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from ..model.chain import Route
from .poison import Quarantine
from .routing_table import RoutingTable
from .standing import RouteEstimate, RouteView, Standing, queue_time

UNKNOWN = 1 << 62  # tokens or bytes, until a route's workers have reported


def outstanding(known: int, computed: int, total: int) -> int:
    """Return the tokens that a sequence still costs: tokens to prefill and tokens to decode.

    Args:
        known: tokens it has (prompt and emitted).
        computed: how many of these have KV.
        total: most tokens it may reach, prompt and answer together.
    """
    return max(known - computed, 0) + max(total - known, 0)


def workers_of(route: Route) -> tuple[str, ...]:
    """Return the workers of a route in the order of its hops, each once."""
    hops = route.hops
    return (hops[0].worker,) if len(hops) == 1 else tuple(dict.fromkeys([hop.worker for hop in hops]))


PLAIN = RouteView()


def choose(
    routes: Iterable[Route],
    work: Mapping[str, int],
    closed: Set[str] = frozenset(),
    avoid: str = "",
    tokens: int = 0,
    capacity: Mapping[str, int] | None = None,
    variants: Collection[str] = (),
    view: RouteView = PLAIN,
    seat: str = "",
) -> Route | None:
    """Return the route with the best standing (``standing.py``); further ties go by ``seat``, worker names and id.

    A route makes a detour if it passes more workers than another route through one of them: through a block deployed for a
    burst. So it is taken only while the short one would have to wait.

    Args:
        routes: whole routes of the application.
        work: tokens outstanding on each worker (absent: none).
        closed: workers reserved for a suspect; no route through them is taken.
        avoid: id of a route not to take (its home has just given the request back).
        tokens: most tokens that the request may reach.
        capacity: route id -> tokens that its workers hold (absent: any).
        variants: applications of these routes that serve in the place of another.
        view: what else is known of the request and the workers; plain: the work ahead decides.
        seat: name of the gateway if there are others: each has an order of its own of workers that have equal work, or all
            would send what they know nothing of from each other to the same ones.
    """
    best: Route | None = None
    best_key: Any = None
    rooms: Mapping[str, int] = capacity or {}
    plain = view is PLAIN
    routes = [*routes]
    if plain and all(len(route.hops) == 1 for route in routes):
        open_ones = [route for route in routes if route.id != avoid and route.hops[0].worker not in closed]
        return _best_replica(open_ones, work, tokens, rooms, (seat, variants))
    ways = [(route, workers_of(route)) for route in routes]
    shortest = _shortest(ways)
    for route, workers in ways:
        if route.id == avoid or not closed.isdisjoint(workers):
            continue
        excess = max([work.get(worker, 0) for worker in workers]) + tokens - rooms.get(route.id, UNKNOWN)
        excess = excess if excess > 0 else 0
        detour = len(workers) - min([shortest[worker] for worker in workers])
        stands_in = route.application in variants
        if plain:  # the same order by a shorter key, since this is done for each request
            key: Any = (excess, detour, queue_time(workers, work), stands_in, _turn(seat, workers[0]), workers, route.id)
        else:
            estimate = view.estimate(route, workers, work)
            standing = view.standing(route, excess, detour, estimate, stands_in)
            key = (standing.key((estimate.total,)), _turn(seat, workers[0]), workers, route.id)
        if best_key is None or key < best_key:
            best, best_key = route, key
    return best


def _best_replica(
    routes: Sequence[Route],
    work: Mapping[str, int],
    tokens: int,
    rooms: Mapping[str, int],
    ties: tuple[str, Collection[str]],
) -> Route | None:
    """Return the one that ``choose`` would take of routes of one worker each: a pass that makes few keys.

    Most models have no other routes, and a gateway may have a thousand of them to compare for each request. ``ties``: its
    seat, and the variants.
    """
    best: Route | None = None
    least_excess = least_work = 0
    for route in routes:
        ahead = work.get(route.hops[0].worker, 0)
        excess = ahead + tokens - rooms.get(route.id, UNKNOWN)
        excess = excess if excess > 0 else 0
        if best is not None:
            if excess > least_excess or (excess == least_excess and ahead > least_work):
                continue
            if (excess, ahead) == (least_excess, least_work) and _tie(best, *ties) <= _tie(route, *ties):
                continue
        best = route
        least_excess, least_work = excess, ahead
    return best


def _tie(route: Route, seat: str, variants: Collection[str]) -> tuple[bool, int, str, str]:
    """Return what decides between equally loaded routes of one worker each."""
    worker = route.hops[0].worker
    return route.application in variants, _turn(seat, worker), worker, route.id


def _turn(seat: str, worker: str) -> int:
    """Return the place of a worker in a gateway's own order of workers; the same for all without a seat."""
    return crc32(f"{seat}/{worker}".encode()) if seat else 0


def _shortest(ways: Sequence[tuple[Route, tuple[str, ...]]]) -> dict[str, int]:
    """Return, for each worker, the fewest workers of a route through it."""
    shortest: dict[str, int] = {}
    for _, workers in ways:
        for worker in workers:
            shortest[worker] = min(shortest.get(worker, len(workers)), len(workers))
    return shortest


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """The facts about a request that decide its route."""

    request: str
    application: str
    tokens: int  # most tokens it may reach, prompt and answer together
    suspect: bool = False
    avoid: str = ""  # id of a route not to take now
    refused: Set[str] = frozenset()  # ids of routes whose workers have reported that they cannot hold it
    room: int = 0  # tokens that a route must hold, if more: with fewer its worker gave it back
    variants: tuple[str, ...] = ()  # applications that may serve it in the other's place
    known: int = 0  # tokens that it has
    near: str = ""  # worker of its last attempt
    target: float = 0.0  # seconds to its first token; 0: none
    cached: Mapping[str, int] = field(default_factory=dict)  # route id -> leading tokens whose KV is there
    numerics: str = ""  # of the workers that made its tokens; empty: it has none
    waited: float = 0.0  # seconds that it has waited so far


def fitting(wanted: RouteQuery, table: RoutingTable) -> list[Route]:
    """Return the routes whose workers can hold the request, as far as is known."""
    routes = [route for route in table.routes.get(wanted.application, []) if route.id not in wanted.refused]
    return [route for route in routes if table.capacity.get(route.id, UNKNOWN) >= _need(wanted, route, table)]


def staying(routes: list[Route], wanted: RouteQuery, table: RoutingTable) -> list[Route]:
    """Return the routes on which a request keeps the numerics that made its tokens; all of them if there is none.

    Pages do not move to other numerics, and the rest of its answer would follow from other bits than the beginning.
    """
    if not wanted.numerics:
        return routes
    return [route for route in routes if table.numerics_of(route) == wanted.numerics] or routes


def _need(wanted: RouteQuery, route: Route, table: RoutingTable) -> int:
    """Return the tokens that a route must hold: at most what it ever will, except for a request longer than that."""
    alone = table.capacity_alone.get(route.id, 0)
    outdated = wanted.room >= UNKNOWN > alone  # given back before the worker had reported what parameters leave
    return wanted.tokens if outdated else max(wanted.tokens, min(wanted.room, alone))


def lacking_room(wanted: RouteQuery, table: RoutingTable) -> int:
    """Return the tokens that one of the routes must become able to hold by unloading other applications.

    0: a route holds the request; or none ever will, and a worker says why.
    """
    if not table.capacity_alone or fitting(wanted, table):
        return 0
    routes = [route for route in table.routes.get(wanted.application, []) if route.id not in wanted.refused]
    needs = [_need(wanted, route, table) for route in routes if table.capacity_alone.get(route.id, 0) >= wanted.tokens]
    need = min(needs, default=0)
    return need if need < UNKNOWN else wanted.tokens


def open_routes(wanted: RouteQuery, table: RoutingTable, quarantine: Quarantine) -> list[Route]:
    """Return the routes that a non-suspect request may take now. If it fits nowhere, a worker says why."""
    closed = quarantine.workers()
    routes = fitting(wanted, table) or table.routes.get(wanted.application, [])
    routes = staying([*routes, *_of_variants(wanted, table)], wanted, table)
    return [route for route in routes if route.id != wanted.avoid and closed.isdisjoint(workers_of(route))]


def _of_variants(wanted: RouteQuery, table: RoutingTable) -> list[Route]:
    """Return the routes of variants whose workers can hold the request."""
    return [route for name in wanted.variants for route in fitting(replace(wanted, application=name, room=0), table)]


@dataclass(frozen=True, slots=True)
class ComparedRoute:
    """A route as it was compared for one request."""

    route: Route
    standing: Standing
    estimate: RouteEstimate

    @property
    def key(self) -> Any:
        return self.standing.key((self.estimate.total,)), workers_of(self.route), self.route.id


def view_of(wanted: RouteQuery, table: RoutingTable) -> RouteView:
    """Return what is known of a request and the workers.

    Without variants and KV only the speeds count with which workers joined, and only if these differ.
    """
    left = max(wanted.tokens - wanted.known, 0)
    if wanted.variants or wanted.cached:
        return RouteView(
            wanted.known, left, table.paces.measured, wanted.cached, table.ranks, table.sizes, wanted.near, wanted.target,
            table.link,
        )  # fmt: skip
    paces = table.paces.joined
    return RouteView(wanted.known, left, paces, sizes=table.sizes, link=table.link) if paces.slower else PLAIN


def compared(wanted: RouteQuery, routes: Iterable[Route], table: RoutingTable) -> list[ComparedRoute]:
    """Return the standing and the estimate of each route."""
    view, work = view_of(wanted, table), table.work
    ways = [(route, workers_of(route)) for route in routes]
    shortest, found = _shortest(ways), list[ComparedRoute]()
    for route, workers in ways:
        ahead = max([work.get(worker, 0) for worker in workers])
        short = max(ahead + wanted.tokens - table.capacity.get(route.id, UNKNOWN), 0)
        detour = len(workers) - min([shortest[worker] for worker in workers])
        estimate = view.estimate(route, workers, work)
        standing = view.standing(route, short, detour, estimate, route.application in wanted.variants)
        found.append(ComparedRoute(route, standing, estimate))
    return found


def dispatch(wanted: RouteQuery, table: RoutingTable, quarantine: Quarantine, ordinary: bool) -> Route | None:
    """Return a route for a waiting request, or None if there is none now.

    A suspect gets a reserved route and waits until that is idle. While ``ordinary`` requests exist only one route is
    reserved, so that suspects cannot lock out all others.
    """
    kept = quarantine.release(wanted.request)
    routes = table.routes.get(wanted.application, [])
    fits = fitting(wanted, table)
    capacity = table.capacity if fits else None
    if not wanted.suspect and (others := _of_variants(wanted, table)):
        fits, capacity = [*fits, *others], table.capacity
    fits = staying(fits or routes, wanted, table)  # a worker will say why not
    if not wanted.suspect:
        closed = quarantine.workers()
        view = view_of(wanted, table)
        return choose(
            fits, table.work, closed, wanted.avoid, wanted.tokens, capacity, wanted.variants, view, seat=table.seat
        )
    if not routes or (ordinary and quarantine.routes):
        return None
    if kept not in fits or kept is None or kept.id == wanted.avoid:
        kept = choose(fits, table.work, quarantine.workers(), wanted.avoid)
    if kept is None:
        return None
    quarantine.keep(wanted.request, kept)
    return kept if is_idle(kept, table.on) else None


def loading(wanted: RouteQuery, table: RoutingTable) -> RouteEstimate | None:
    """Return the estimate of a request on its own chain while that is loaded on demand; None: it is there, or none is known.

    A load that takes longer than estimated is not known any more.
    """
    left = table.load_seconds.get(wanted.application, 0.0) - wanted.waited
    if left <= 0 or not table.absent(wanted.application):
        return None
    return view_of(wanted, table).once_loaded(wanted.application, left)


def waits_for_load(wanted: RouteQuery, route: Route, table: RoutingTable) -> bool:
    """Return whether a request goes on waiting for its own chain, which is being loaded, rather than begin on a variant.

    route: the best one of its variants. The two are compared as routes are. So a less accurate one is taken only if the load
    breaks the target, and one with more work ahead than the load takes is not.
    """
    own = loading(wanted, table)
    return own is not None and loads_first(own, compared(wanted, [route], table)[0], wanted.target)


def loads_first(own: RouteEstimate, other: ComparedRoute, target: float) -> bool:
    """Return whether a chain that is being loaded stands better than a variant's route. target: as in ``RouteQuery``."""
    standing = Standing(late=bool(target and own.start > target))
    return bool(standing.key((own.total,)) <= other.standing.key((other.estimate.total,)))


def is_idle(route: Route, running: Mapping[str, Set[str]]) -> bool:
    """Return whether no worker of the route runs any request, so that a suspect sent there can hurt only itself."""
    return not any(running.get(worker) for worker in workers_of(route))
