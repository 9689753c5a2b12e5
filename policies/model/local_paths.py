"""Cuts the routes through one worker into runs and spans, at each publication again.

Of a route that was there before, only where others make it be cut is looked at: with a hundred variants of a deep model all
else would hold up the loop of a worker for several sweeps whenever one of them comes or goes.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence

from .chain import Chain, Component, Hop, Kind, Route
from .lineage import lineages
from .runs import Border, LocalRoute, Run, Span, run_of

Stretches = list[tuple[int, int]]  # of a path: first node and the one after the last
Nodes = tuple[Hashable, ...]


class LocalPath:
    """A route here and what of it depends on no other: its nodes in the graph of runs, and in that of spans. With it the
    local route that came of it last, and how it had been cut."""

    def __init__(self, route: Route, chain: Chain, hop: int, numerics: str) -> None:
        here, components = route.hops[hop], chain.components
        lines = lineages(components[: here.last], numerics)
        attentions = [d for d, c in enumerate(components) if c.kv is not None]
        self.route, self.chain, self.components, self.hop = route, chain, components, hop
        self.first = here.first
        self.local = components[here.first : here.last]
        self.layers = [(n, d) for n, d in enumerate(attentions) if here.first <= d < here.last]  # KV layer, depth
        self.nodes: Nodes = tuple([(here.first + d, c.shared) for d, c in enumerate(self.local)])
        self.lines: tuple[Border, ...] = tuple([(n, lines[d]) for n, d in self.layers])
        self._cut: tuple[Stretches, Stretches] = ([], [])
        self._made: LocalRoute | None = None

    def made(self, runs: Stretches, spans: Stretches) -> LocalRoute:
        """The route, cut there."""
        if self._made is None or self._cut != (runs, spans):
            self._cut, self._made = (runs, spans), self._make(runs, spans)
        return self._made

    def _make(self, stretches: Stretches, spans: Stretches) -> LocalRoute:
        hops, local, first = self.route.hops, self.local, self.first
        runs = [self._run(a, b) for a, b in _split_head(stretches, local)]
        changed = [(first + d, c.delta) for d, c in enumerate(local) if c.delta]
        return LocalRoute(
            self.route,
            self.hop,
            tuple(runs),
            tuple([self._span(a, b) for a, b in spans]),
            hops[self.hop + 1].worker if self.hop + 1 < len(hops) else None,
            local[-1].width_out,
            sum([c.nbytes + c.delta_nbytes for c in local]),
            sum([c.kv.raw_bytes for c in local if c.kv is not None]),
            self.chain.max_length,
            deltas=tuple(changed),
            touched=tuple([any(r.depth <= d < r.depth + len(r.components) for d, _ in changed) for r in runs]),
        )

    def _run(self, first: int, last: int) -> Run:
        depth = self.first + first
        kv_layer = sum([1 for c in self.components[:depth] if c.kv is not None])
        return run_of(depth, self.local[first:last], kv_layer)

    def _span(self, first: int, last: int) -> Span:
        layers = self.layers[first:last]
        owners = [self.components[depth] for _, depth in layers]
        layout = owners[0].kv
        assert layout is not None
        resident = [(c.shared, c.delta) if c.delta else (c.shared,) for c in owners]
        return Span.of(layers[0][0], layout.key, resident, [line for _, line in self.lines[first:last]])


class LocalPaths:
    """The routes through ``worker`` as they were published last."""

    def __init__(self, worker: str, numerics: str) -> None:
        self._worker, self._numerics = worker, numerics
        self._known: dict[str, LocalPath] = {}  # by route id

    def cut(self, chains: Sequence[Chain], routes: Sequence[Route], kept: Container[Hashable] = ()) -> dict[str, LocalRoute]:
        """All routes through here, by route id, cut into runs and spans.

        ``routes`` should hold every route that the configuration can bring into force, so that a span is cut before it has
        pages. ``kept``: borders that spans have from earlier; pages are split where a border comes, and never joined again.
        """
        of = {chain.application: chain for chain in chains}
        paths: dict[str, LocalPath] = {}
        for route in routes:
            chain, hop = of.get(route.application), _hop_of(route.hops, self._worker)
            if chain is None or hop < 0:
                continue
            path = self._known.get(route.id)
            if path is None or path.route != route or path.chain != chain:
                path = LocalPath(route, chain, hop, self._numerics)
            paths[route.id] = path
        self._known = paths
        alike = dict.fromkeys([path.nodes for path in paths.values()])  # variants differ in nothing that runs are cut by
        at = _cuts(alike)
        runs = {nodes: _stretches(nodes, at) for nodes in alike}
        at = _cuts([path.lines for path in paths.values()])
        return {id: path.made(runs[path.nodes], _stretches(path.lines, at, kept)) for id, path in paths.items()}

    def fork(self) -> LocalPaths:
        copy = LocalPaths(self._worker, self._numerics)
        copy._known = self._known  # a publication replaces it
        return copy


def _hop_of(hops: Sequence[Hop], worker: str) -> int:
    """Which of them is there; -1: none."""
    for index, hop in enumerate(hops):
        if hop.worker == worker:
            return index
    return -1


def _cuts(paths: Iterable[Nodes]) -> tuple[set[Hashable], set[Hashable]]:
    """Nodes after which, and nodes before which some path enters, leaves or branches."""
    after: dict[Hashable, Hashable] = {}  # the one that follows; None: a path ends there
    before: dict[Hashable, Hashable] = {}
    ends: set[Hashable] = set()
    begins: set[Hashable] = set()
    for path in paths:
        left: Hashable = None
        for right in path:
            if left is not None and after.setdefault(left, right) != right:
                ends.add(left)
            if before.setdefault(right, left) != left:
                begins.add(right)
            left = right
        if left is not None and after.setdefault(left, None) is not None:
            ends.add(left)
    return ends, begins


def _stretches(path: Nodes, cuts: tuple[set[Hashable], set[Hashable]], kept: Container[Hashable] = ()) -> Stretches:
    """The path's maximal uncut stretches. ``kept``: nodes that begin one in any case."""
    ends, begins = cuts
    borders = [i for i in range(1, len(path)) if path[i] in begins or path[i - 1] in ends or path[i] in kept]
    return list(zip([0, *borders], [*borders, len(path)], strict=True)) if path else []


def _split_head(stretches: Stretches, local: Sequence[Component]) -> Stretches:
    """Cut before a head, wherever it stands in a stretch."""
    result: Stretches = []
    for a, b in stretches:
        if b - a > 1 and local[b - 1].kind is Kind.HEAD:
            result += [(a, b - 1), (b - 1, b)]
        else:
            result.append((a, b))
    return result
