"""Which route a request takes: the whole one whose workers have the least left to do.

Owns the comparison between routes and the rule that keeps suspects (requests present at two worker deaths) alone. Holds no
state: the gateway counts the work and passes it in. Never looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from blockwright.policies.model.chain import Route


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
    return tuple(dict.fromkeys(hop.worker for hop in route.hops))


def choose(
    routes: Iterable[Route], work: Mapping[str, int], closed: Set[str] = frozenset(), avoid: str = ""
) -> Route | None:
    """The route with the least outstanding work over all of its workers; ties by worker names, then by id.

    Args:
        routes: whole routes of the application.
        work: tokens outstanding on each worker (absent: none).
        closed: workers that are kept for a suspect; no route through them is taken.
        avoid: id of a route not to take (its home has just given the request back).
    """
    best: Route | None = None
    best_key: tuple[int, tuple[str, ...], str] | None = None
    for route in routes:
        workers = workers_of(route)
        if route.id == avoid or not closed.isdisjoint(workers):
            continue
        key = (sum(work.get(worker, 0) for worker in workers), workers, route.id)
        if best_key is None or key < best_key:
            best, best_key = route, key
    return best


def is_idle(route: Route, running: Mapping[str, int]) -> bool:
    """No worker of the route runs any request, so that a suspect sent there can hurt only itself."""
    return all(running.get(worker, 0) == 0 for worker in workers_of(route))
