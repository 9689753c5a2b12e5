"""What a worker executes and caches, derived from the routes that touch it.

A *run* is the longest stretch of local components that no route enters or leaves in the middle; a *span* the same for KV
layers. Both are found on the graph whose nodes are (depth, shared component) and (layer, lineage): chains that share
parameters at the same depth share runs, also above a part in which they differ, whatever their deltas; KV is shared only
where everything below is equal.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from blockwright.policies.model.chain import Chain, Component, Kind, Route
from blockwright.policies.model.lineage import lineages


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive components executed by one native call. A head is always a run of its own: few rows pass it."""

    depth: int  # of the first component
    components: tuple[bytes, ...]  # ids of what is executed: of a variant its base
    kv_layer: int  # KV layer of the first attention in the run
    head: bool
    nbytes: int = 0  # of parameters that a token is multiplied with, which excludes an embedding's
    kv_bytes: int = 0  # of a position, in all layers of the run


Border = tuple[int, bytes]  # a KV layer that begins a span, and its lineage


@dataclass(frozen=True, slots=True)
class Span:
    """KV layers ``layer`` .. ``layer + layers - 1``; ``lineage`` is that of the last of them."""

    layer: int
    layers: int
    lineage: bytes
    arena: str  # key of the layout
    components: tuple[tuple[bytes, ...], ...]  # of each layer: what must be resident to make its KV, with its delta
    lineages: tuple[bytes, ...]  # of each layer

    @classmethod
    def of(cls, layer: int, arena: str, components: Sequence[tuple[bytes, ...]], lineages: Sequence[bytes]) -> Span:
        """From what is known of each layer."""
        return cls(layer, len(lineages), lineages[-1], arena, tuple(components), tuple(lineages))

    def cut(self, borders: Container[Border]) -> tuple[Span, ...]:
        """The spans that it is made of once there are these borders; itself where none lies inside."""
        inside = [i for i in range(1, self.layers) if (self.layer + i, self.lineages[i]) in borders]
        if not inside:
            return (self,)
        pairs = zip([0, *inside], [*inside, self.layers], strict=True)
        return tuple(Span.of(self.layer + a, self.arena, self.components[a:b], self.lineages[a:b]) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """A route as one of its workers sees it."""

    route: Route
    hop: int
    runs: tuple[Run, ...]  # in order of depth; the head's, if it is here, last
    spans: tuple[Span, ...]
    next_worker: str | None  # where rows go from here; None at the chain's end
    width: int  # of the hidden states that leave here
    cost_compute: int  # bytes of parameters that a token passes here
    cost_memory: int  # bytes of KV of a page here, as keys and values are, without padding
    max_length: int  # tokens of a sequence, prompt and answer together
    deltas: tuple[tuple[int, bytes], ...] = ()  # (depth, delta id) of the variants among the components here
    touched: tuple[bool, ...] = ()  # of each run: whether a delta is inside
    delta: int = 0  # number of ``deltas`` on this worker (``LocalRoutes``); 0: there are none

    def cut(self, borders: Container[Border]) -> LocalRoute:
        """The same route with these borders between its spans."""
        spans = tuple(piece for span in self.spans for piece in span.cut(borders))
        return self if spans == self.spans else replace(self, spans=spans)

    def is_like(self, other: LocalRoute) -> bool:
        """Whether sequences on the other one may go on here: the same components at the same depths, the same spans."""
        return self._identity() == other._identity()

    def _identity(self) -> tuple[object, ...]:
        return self.route.hops, self.spans, self.deltas, [component for run in self.runs for component in run.components]


def _cuts(paths: Iterable[Sequence[Hashable]]) -> set[tuple[Hashable, Hashable]]:
    """Pairs of neighbours between which some path enters, leaves or branches."""
    after: dict[Hashable, set[Hashable]] = {}
    before: dict[Hashable, set[Hashable]] = {}
    pairs: set[tuple[Hashable, Hashable]] = set()
    for path in paths:
        for left, right in zip([None, *path], [*path, None], strict=True):
            after.setdefault(left, set()).add(right)
            before.setdefault(right, set()).add(left)
            pairs.add((left, right))
    return {(a, b) for a, b in pairs if a is not None and b is not None and (len(after[a]) > 1 or len(before[b]) > 1)}


def _stretches(
    path: Sequence[Hashable], cuts: set[tuple[Hashable, Hashable]], kept: Container[Hashable] = ()
) -> list[tuple[int, int]]:
    """The path's maximal uncut stretches as (first, last exclusive). ``kept``: nodes that begin one in any case."""
    borders = [i for i in range(1, len(path)) if (path[i - 1], path[i]) in cuts or path[i] in kept]
    return list(zip([0, *borders], [*borders, len(path)], strict=True)) if path else []


def localize(
    worker: str, chains: Sequence[Chain], routes: Sequence[Route], numerics: str, kept: Collection[Border] = ()
) -> dict[str, LocalRoute]:
    """All routes through ``worker``, by route id, cut into runs and spans.

    ``routes`` should hold every route that the configuration can bring into force, so that a span is cut before it has
    pages. ``kept``: borders that spans have from earlier; pages are split where a border comes, and never joined again.
    """
    lengths = {c.application: c.max_length for c in chains}
    parts: dict[str, Sequence[Component]] = {c.application: c.components for c in chains}
    lines = {name: lineages(components, numerics) for name, components in parts.items()}
    here = [(r, i, h) for r in routes for i, h in enumerate(r.hops) if h.worker == worker and r.application in parts]
    nodes: dict[str, list[Hashable]] = {}
    layers: dict[str, list[tuple[int, int]]] = {}  # (KV layer, depth) of the local attentions
    for route, _, hop in here:
        components = parts[route.application]
        nodes[route.id] = [(d, components[d].shared) for d in range(hop.first, hop.last)]
        attentions = [d for d, c in enumerate(components) if c.kv is not None]
        layers[route.id] = [(n, d) for n, d in enumerate(attentions) if hop.first <= d < hop.last]
    run_cuts = _cuts(nodes.values())
    kv_paths: dict[str, list[Hashable]] = {r.id: [(n, lines[r.application][d]) for n, d in layers[r.id]] for r, _, _ in here}
    span_cuts = _cuts(kv_paths.values())
    result = {}
    for route, index, hop in here:
        components = parts[route.application]
        spans = [
            _span(layers[route.id][a:b], components, lines[route.application])
            for a, b in _stretches(kv_paths[route.id], span_cuts, kept)
        ]
        runs = []
        for a, b in _split_head(_stretches(nodes[route.id], run_cuts), components, hop.first):
            depth = hop.first + a
            kv_layer = sum(1 for c in components[:depth] if c.kv is not None)
            runs.append(run_of(depth, components[depth : hop.first + b], kv_layer))
        follower = route.hops[index + 1].worker if index + 1 < len(route.hops) else None
        local = components[hop.first : hop.last]
        costs = (sum(c.nbytes + c.delta_nbytes for c in local), sum(c.kv.raw_bytes for c in local if c.kv is not None))
        changed = [(hop.first + d, c.delta) for d, c in enumerate(local) if c.delta]
        result[route.id] = LocalRoute(
            route,
            index,
            tuple(runs),
            tuple(spans),
            follower,
            local[-1].width_out,
            *costs,
            lengths[route.application],
            deltas=tuple(changed),
            touched=tuple(any(r.depth <= d < r.depth + len(r.components) for d, _ in changed) for r in runs),
        )
    return result


def run_of(depth: int, inside: Sequence[Component], kv_layer: int) -> Run:
    """Of these components, whose first attention has this KV layer."""
    nbytes = sum(c.nbytes for c in inside if c.kind is not Kind.EMBEDDING)
    kv_bytes = sum(c.kv.raw_bytes // c.kv.page_size for c in inside if c.kv is not None)
    return Run(depth, tuple(c.shared for c in inside), kv_layer, inside[0].kind is Kind.HEAD, nbytes, kv_bytes)


def _split_head(stretches: list[tuple[int, int]], components: Sequence[Component], first: int) -> list[tuple[int, int]]:
    """Cut before a head, wherever it stands in a stretch."""
    result = []
    for a, b in stretches:
        if b - a > 1 and components[first + b - 1].kind is Kind.HEAD:
            result += [(a, b - 1), (b - 1, b)]
        else:
            result.append((a, b))
    return result


def _span(layers: Sequence[tuple[int, int]], components: Sequence[Component], lines: Sequence[bytes]) -> Span:
    """Over these (KV layer, depth)."""
    owners = [components[depth] for _, depth in layers]
    layout = owners[0].kv
    assert layout is not None
    resident = [(c.shared, c.delta) if c.delta else (c.shared,) for c in owners]
    return Span.of(layers[0][0], layout.key, resident, [lines[depth] for _, depth in layers])
