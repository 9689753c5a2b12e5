"""The cutting of a worker's routes into runs and spans, at each publication anew.

A route that was there before is processed only where others cause a cut in it: with a hundred adapters of a deep model,
anything else would block the worker's loop for several sweeps whenever one of them comes or goes.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from itertools import pairwise

from .chain import Chain, Component, Hop, Kind, Route
from .lineage import hidden_lineage, lineages
from .runs import Border, Exit, LocalRoute, Run, Span, run_of

Stretches = list[tuple[int, int]]  # of a path: (first node, the one after the last)
Nodes = tuple[Hashable, ...]
ALONE = (Kind.HEAD, Kind.STITCH)  # components that are runs of their own


class LocalPath:
    """A route here, with its own nodes in the graph of runs and in the graph of spans.

    These depend on no other route. It keeps the local route made last, and how that had been cut.
    """

    def __init__(self, route: Route, chain: Chain, hop: int, numerics: str) -> None:
        here, components = route.hops[hop], chain.components
        lines = lineages(components[: here.last], numerics)
        attentions = [d for d, c in enumerate(components) if c.kv is not None]
        self.route = route
        self.chain = chain
        self.components = components
        self.hop = hop
        self.first = here.first
        self.local = components[here.first : here.last]
        self.layers = [(n, d) for n, d in enumerate(attentions) if here.first <= d < here.last]  # KV layer, depth
        layouts = [components[depth].kv for _, depth in self.layers]
        self.changes = [i for i, (one, following) in enumerate(pairwise(layouts), 1) if one != following]  # a span has one
        self.nodes: Nodes = tuple([(here.first + d, c.shared) for d, c in enumerate(self.local)])
        self.lines: tuple[Border, ...] = tuple([(n, lines[d]) for n, d in self.layers])
        self.whole = len(self.local) == len(components)
        self.passed = set(lines[:-2]) if self.whole else set[bytes]()  # lineages before which others may leave
        self.exit = self._exit(lines[-2]) if self.whole and chain.hidden is not None else None
        self.exit_line = lines[-2] if self.exit is not None else b""
        self._cut: tuple[Stretches, Stretches, bool, tuple[Exit, ...]] = ([], [], False, ())
        self._made: LocalRoute | None = None

    def made(self, runs: Stretches, spans: Stretches, keeps: bool, entries: tuple[Exit, ...]) -> LocalRoute:
        """Return the route, cut there, with pages of hidden states at its end if it ``keeps`` them."""
        if self._made is None or self._cut != (runs, spans, keeps, entries):
            self._cut, self._made = (runs, spans, keeps, entries), self._make(runs, spans, keeps, entries)
        return self._made

    def _exit(self, lineage: bytes) -> Exit:
        """Return the exit before the head of a lower tier."""
        layout, last = self.chain.hidden, self.local[-2]
        assert layout is not None
        resident = (last.shared, last.delta) if last.delta else (last.shared,)
        span = Span.of(len(self.layers), layout.key, [resident], [hidden_lineage(lineage)])
        return Exit(len(self.components) - 1, span)

    def _make(self, stretches: Stretches, spans: Stretches, keeps: bool, entries: tuple[Exit, ...]) -> LocalRoute:
        hops = self.route.hops
        local = self.local
        first = self.first
        runs = [self._run(a, b) for a, b in _split_alone(stretches, local)]
        changed = [(first + d, c.delta) for d, c in enumerate(local) if c.delta]
        return LocalRoute(
            self.route,
            self.hop,
            tuple(runs),
            tuple([self._span(a, b) for a, b in self._one_layout(spans)])
            + ((self.exit.span,) if keeps and self.exit is not None else ()),
            hops[self.hop + 1].worker if self.hop + 1 < len(hops) else None,
            local[-1].width_out,
            sum([c.nbytes + c.delta_nbytes for c in local]),
            sum([c.kv.raw_bytes for c in local if c.kv is not None]),
            self.chain.max_length,
            deltas=tuple(changed),
            touched=tuple([any(r.depth <= d < r.depth + len(r.components) for d, _ in changed) for r in runs]),
            exit=self.exit if keeps else None,
            entries=entries,
        )

    def _run(self, first: int, last: int) -> Run:
        depth = self.first + first
        kv_layer = sum([1 for c in self.components[:depth] if c.kv is not None])
        return run_of(depth, self.local[first:last], kv_layer)

    def _one_layout(self, spans: Stretches) -> Stretches:
        """Cut spans where the layout of KV changes."""
        if not self.changes:
            return spans
        return [piece for a, b in spans for piece in pairwise([a, *[i for i in self.changes if a < i < b], b])]

    def _span(self, first: int, last: int) -> Span:
        layers = self.layers[first:last]
        owners = [self.components[depth] for _, depth in layers]
        layout = owners[0].kv
        assert layout is not None
        resident = [(c.shared, c.delta) if c.delta else (c.shared,) for c in owners]
        return Span.of(layers[0][0], layout.key, resident, [line for _, line in self.lines[first:last]])


class LocalPaths:
    """The routes through ``worker`` as published last."""

    def __init__(self, worker: str, numerics: str, hidden_pages: str = "off") -> None:
        self._worker = worker
        self._numerics = numerics
        self._hidden_pages = hidden_pages
        self._known: dict[str, LocalPath] = {}  # by route id
        self._alike: dict[Nodes, Nodes] = {}  # nodes of the known paths, which are one object where they are equal

    def change_numerics(self, numerics: str) -> None:
        """Seed the lineages of paths that are not known yet with other numerics."""
        self._numerics = numerics

    def cut(self, chains: Sequence[Chain], routes: Sequence[Route], kept: Container[Hashable] = ()) -> dict[str, LocalRoute]:
        """Return all routes through here, by route id, cut into runs and spans.

        ``routes`` should hold every route that the configuration can bring into force, so that a span is cut before it has
        pages. ``kept``: earlier borders of spans; pages are split where a border appears, and never joined again.
        """
        paths = self._paths(chains, routes)
        alike = {id(path.nodes): path.nodes for path in paths.values()}  # adapters do not differ in anything that cuts runs
        at = _cuts(alike.values())
        runs = {key: _stretches(nodes, at) for key, nodes in alike.items()}
        at = _cuts([path.lines for path in paths.values()])
        exits = self._exits(paths.values())
        spans = {name: _stretches(path.lines, at, kept) for name, path in paths.items()}
        if not exits:
            return {name: path.made(runs[id(path.nodes)], spans[name], False, ()) for name, path in paths.items()}
        made = {}
        for name, path in paths.items():
            entries = sorted([exit for line, exit in exits.items() if line in path.passed], key=lambda one: -one.depth)
            made[name] = path.made(runs[id(path.nodes)], spans[name], path.exit_line in exits, tuple(entries))
        return made

    def _paths(self, chains: Sequence[Chain], routes: Sequence[Route]) -> dict[str, LocalPath]:
        """Return the paths of all routes through here, by route id, and know no others from now on.

        Paths with equal nodes share them as one object: a publication then compares objects, and never again the tuples of
        a hundred adapters.
        """
        of = {chain.application: chain for chain in chains}
        alike = self._alike.copy()
        paths: dict[str, LocalPath] = {}
        for route in routes:
            chain, hop = of.get(route.application), _hop_of(route.hops, self._worker)
            if chain is None or hop < 0:
                continue
            path = self._known.get(route.id)
            if path is None or path.route != route or path.chain != chain:
                path = LocalPath(route, chain, hop, self._numerics)
                path.nodes = alike.setdefault(path.nodes, path.nodes)
            paths[route.id] = path
        living = {id(path.nodes) for path in paths.values()}
        self._known = paths
        self._alike = {nodes: nodes for nodes in alike.values() if id(nodes) in living}
        return paths

    def _exits(self, paths: Iterable[LocalPath]) -> dict[bytes, Exit]:
        """Return the exits whose hidden states are kept, by lineage; ``auto``: if a route here goes on behind them."""
        found = {path.exit_line: path.exit for path in paths if path.exit is not None}
        if self._hidden_pages == "on" or not found:
            return found if self._hidden_pages != "off" else {}
        passed = {line for path in paths for line in path.passed} if self._hidden_pages == "auto" else set[bytes]()
        return {line: exit for line, exit in found.items() if line in passed}

    def fork(self) -> LocalPaths:
        copy = LocalPaths(self._worker, self._numerics, self._hidden_pages)
        copy._known = self._known  # a publication replaces these, so they can be shared
        copy._alike = self._alike
        return copy


def _hop_of(hops: Sequence[Hop], worker: str) -> int:
    """Return the index of the worker's hop; -1: none."""
    for index, hop in enumerate(hops):
        if hop.worker == worker:
            return index
    return -1


def _cuts(paths: Iterable[Nodes]) -> tuple[set[Hashable], set[Hashable]]:
    """Return the nodes after which, and the nodes before which, some path enters, leaves or branches."""
    after: dict[Hashable, Hashable] = {}  # node -> its follower; None: a path ends there
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
    """Return the path's maximal uncut ranges. ``kept``: nodes that always begin one."""
    ends, begins = cuts
    borders = [i for i in range(1, len(path)) if path[i] in begins or path[i - 1] in ends or path[i] in kept]
    return list(zip([0, *borders], [*borders, len(path)], strict=True)) if path else []


def _split_alone(stretches: Stretches, local: Sequence[Component]) -> Stretches:
    """Cut around heads and stitches, wherever they are in a range."""
    result: Stretches = []
    for a, b in stretches:
        alone = [place for place in range(a, b) if local[place].kind in ALONE]
        borders = sorted({a, b, *alone, *(place + 1 for place in alone)})
        result += pairwise(borders)
    return result
