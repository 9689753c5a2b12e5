"""The partition of chains into blocks, and the placement of blocks on workers.

Owns two decisions: the borders of blocks (where the set of models that share a component changes, and between pipeline
hops) and the routes over a set of workers (replicas, or pipelines of consecutive workers balanced by bytes). Holds no
state; equal inputs give equal cuts, so that models with equal components are cut alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .chain import Block, Component, Hop, Route


def hop_borders(components: Sequence[Component], span: int) -> list[int]:
    """Cut a chain into ``span`` consecutive hops so that the largest has as few bytes as possible.

    Every hop gets at least one component with KV if the chain has enough of them: a home without KV could neither skip
    prompt pages nor tell its hosts' pages apart.

    Returns:
        ``span + 1`` depths, the first 0 and the last ``len(components)``; each hop has at least one component. Among equal
        cuts, it is the one with larger earlier hops, so that the answer is unique.
    Raises:
        ValueError: the chain has fewer components than hops.
    """
    count = len(components)
    if span > count:
        raise ValueError(f"a chain of {count} components cannot be spread over {span} workers; lower pipeline")
    ahead, caches = [0], [0]
    for component in components:
        ahead.append(ahead[-1] + component.nbytes)
        caches.append(caches[-1] + (component.kv is not None))
    least = 1 if caches[count] >= span else 0
    never = ahead[count] + 1  # larger than any hop

    def hop(i: int, j: int) -> int:
        return ahead[j] - ahead[i] if i < j and caches[j] - caches[i] >= least else never

    # best[k][i]: smallest possible largest hop when components i.. are cut into k hops
    best = [[never] * (count + 1) for _ in range(span + 1)]
    best[1] = [hop(i, count) for i in range(count + 1)]
    for k in range(2, span + 1):
        for i in range(count - k, -1, -1):
            best[k][i] = min(max(hop(i, j), best[k - 1][j]) for j in range(i + 1, count - k + 2))
    borders = [0]
    for k in range(span, 1, -1):
        i = borders[-1]
        cuts = (j for j in range(count - k + 1, i, -1) if max(hop(i, j), best[k - 1][j]) == best[k][i])
        borders.append(next(cuts))
    return [*borders, count]


def cut_blocks(
    chains: Mapping[str, Sequence[Component]], hops: Mapping[str, Collection[int]] | None = None
) -> dict[str, tuple[Block, ...]]:
    """Return the blocks of each application: as long as possible, without a border of sharing or of hops inside.

    Neighbors stay together if the same applications have both at these depths. A border of one application is one for
    every application with the same components there, so that shared components lie in equal blocks.

    Args:
        chains: application -> components in order.
        hops: application -> depths at which one of its hops begins (absent: only the first).
    """
    users: dict[tuple[int, bytes], set[str]] = {}
    for application, components in chains.items():
        for depth, component in enumerate(components):
            users.setdefault((depth, component.id), set()).add(application)
    borders: set[tuple[int, bytes]] = set()  # (depth, id) of components that begin a block
    for application, components in chains.items():
        for depth in (0, *(hops or {}).get(application, ())):
            borders.add((depth, components[depth].id))
        for depth in range(1, len(components)):
            if users[depth, components[depth].id] != users[depth - 1, components[depth - 1].id]:
                borders.add((depth, components[depth].id))
    result = {}
    for application, components in chains.items():
        starts = [d for d, component in enumerate(components) if (d, component.id) in borders]
        ends = [*starts[1:], len(components)]
        result[application] = tuple(Block(tuple(components[a:b])) for a, b in zip(starts, ends, strict=True))
    return result


def place(
    chains: Mapping[str, Sequence[Component]],
    workers: Sequence[str],
    spans: Mapping[str, int] | None = None,
    version: int = 1,
) -> list[Route]:
    """Place every application on all workers: a route for each worker, or for each group of ``span`` consecutive workers.

    A group's first worker has the embedding and is the home; its last has the head.

    Raises:
        ValueError: the workers are no multiple of a span, or a chain has fewer components than hops.
    """
    routes = []
    for application, components in chains.items():
        span = (spans or {}).get(application, 1)
        if len(workers) % span:
            raise ValueError(f"{len(workers)} workers cannot form pipelines of {span}; give a divisor")
        borders = hop_borders(components, span)
        for start in range(0, len(workers), span):
            group = workers[start : start + span]
            hops = tuple(Hop(w, a, b) for w, a, b in zip(group, borders[:-1], borders[1:], strict=True))
            routes.append(Route(f"{application}@{'+'.join(group)}", version, application, hops))
    return routes
