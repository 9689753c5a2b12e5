"""Moves of running requests between routes: the destination, the KV layers to copy, and the moment of the switch.

Pure. The request keeps its tokens and its seed. The moved KV is only cache, without which the new route computes it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..model.chain import Component, Route
from .dispatch import RouteQuery, choose, fitting, staying, view_of, workers_of
from .poison import Quarantine
from .routing_table import RoutingTable

PATIENCE = 30.0  # seconds a copy may take; then the request moves with the pages that arrived
ROUNDS = 2  # rounds of copying: pages that fill meanwhile go in the last one
KEPT = 40.0  # seconds that workers keep the pages of a paused request that does not come
SHOWN = 8  # alternatives named in a refusal
STUCK = 1.0  # seconds without any pages of paused requests moving, until one is recomputed


def copies_again(rounds: int, *, failed: bool) -> bool:
    """Return whether a decoding request whose copies are answered needs another round, for pages that filled meanwhile."""
    return rounds < ROUNDS and not failed


def begins_there(*, copying: bool, decodes: bool) -> bool:
    """Return whether its attempt on the new route begins.

    A request that does not decode yet need not wait: it prefills there from the front, while its pages arrive from the
    back.
    """
    return not (copying and decodes)


def overdue(since: float, now: float) -> bool:
    """Return whether a copy is not waited for any more."""
    return now - since > PATIENCE


def stuck(since: float, now: float) -> bool:
    """Return whether paused requests wait for one another's memory: nothing has moved or found room for too long."""
    return now - since > STUCK


@dataclass(frozen=True, slots=True)
class Unmovable:
    """The reason why a request stays where it is: a sentence, and the parameter at fault ("": none)."""

    message: str
    param: str = ""


def destination(
    wanted: RouteQuery,
    current: Route,
    table: RoutingTable,
    quarantine: Quarantine,
    work: Mapping[str, int],
    *,
    worker: str = "",
    route: str = "",
) -> Route | Unmovable:
    """Return the route to move to: the named one, the best with the named worker as home, or the best other route.

    ``work``: tokens outstanding on each worker.
    """
    routes = others = [one for one in fitting(wanted, table) if one.id != current.id]
    name = table.model_of(wanted.application)
    if wanted.suspect:
        return Unmovable("it runs alone, because workers died while it ran; it cannot be moved")
    if route:
        if route == current.id:
            return Unmovable(f"it is on route {route} already; name another one", "route")
        routes = [one for one in routes if one.id == route]
        if not routes:
            why = f"route {route} of model {name} is not active, or cannot hold it"
            return Unmovable(f"{why}; {_elsewhere('route', (one.id for one in others))}", "route")
    elif worker:
        if worker == current.home:
            return Unmovable(f"it is on worker {worker} already; name another one", "worker")
        routes = [one for one in routes if one.home == worker]
        if not routes:
            why = f"no route of model {name} that can hold it begins on worker {worker}"
            return Unmovable(f"{why}; {_elsewhere('worker', (one.home for one in others))}", "worker")
    elif not (routes := staying(others, wanted, table)):
        return Unmovable(f"there is no other route of model {name} that holds it; deploy the model on one more worker")
    view = view_of(wanted, table)
    found = choose(routes, work, quarantine.workers(), "", wanted.tokens, table.capacity, view=view)
    return found or Unmovable("every other route is kept for a request at which workers died; try again later")


def _elsewhere(kind: str, names: Iterable[str]) -> str:
    listed = ", ".join(sorted({*names})[:SHOWN])
    return f"possible targets: {kind} {listed}" if listed else "there is no other one"


def homes(tokens: Mapping[str, int], workers: Sequence[str]) -> dict[str, str]:
    """Assign each sequence of a pipeline to a replica: the longest first, each where the load is least (Graham 1969)."""
    load, found = dict.fromkeys(workers, 0), dict[str, str]()
    for request in sorted(tokens, key=lambda request: (-tokens[request], request)):
        found[request] = min(workers, key=load.__getitem__)
        load[found[request]] += tokens[request]
    return found


def deal(requests: Sequence[RouteQuery], routes: Container[str], table: RoutingTable) -> dict[str, Route | None]:
    """Assign requests whose routes end to new routes: the longest first, each where the load is least; None: nowhere.

    ``routes``: ids of the routes to use, of which those in force that hold the request count.
    """
    found: dict[str, Route | None] = {}
    for application in sorted({wanted.application for wanted in requests}):
        own = [wanted for wanted in requests if wanted.application == application]
        places = {route.id: route for route in table.routes.get(application, ()) if route.id in routes}
        dealt = homes({wanted.request: wanted.tokens for wanted in own}, list(places)) if places else {}
        for wanted in own:
            fits = staying([route for route in fitting(wanted, table) if route.id in places], wanted, table)
            route = places.get(dealt.get(wanted.request, ""))
            found[wanted.request] = route if route in fits else next(iter(fits), None)
    return found


Layers = tuple[str, int, int]  # (worker, first KV layer, last exclusive)


def page_targets(
    own: Sequence[Component], other: Sequence[Component], source: Route, target: Route
) -> dict[str, list[Layers]]:
    """Return, for each worker with KV of the old route, the layers to send and their targets.

    Layers that stay on their worker are not sent, nor those behind the first component in which the chains differ.

    Args:
        own: the components of the old route's chain.
        other: those of the new one's.
    """
    before, behind = _layers_before(own), _layers_before(other)
    shared = before[next((depth for depth, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), -1)]
    found: dict[str, list[Layers]] = {worker: [] for worker in workers_of(source)}
    for there in target.hops:
        for here in source.hops:
            first = max(before[here.first], behind[there.first])
            end = min(before[here.last], behind[there.last], shared)
            if first < end and here.worker != there.worker:
                found[here.worker].append((there.worker, first, end))
    return {worker: targets for worker, targets in found.items() if targets}


def _layers_before(components: Sequence[Component]) -> list[int]:
    """Return the KV layers below each component, and at last those of all."""
    return [0, *accumulate(component.kv is not None for component in components)]
