"""The order in which the requests of a batch run: by density, with prefixes kept together.

After BlendServe (sections "Layer sort", "Conditional node splitting" and "Merge"): children of each node of the prefix
tree are sorted by density, compute-heavy first; nodes are opened where that makes few tokens be computed twice; opened
parts are sorted as a whole, and neighbors of like density are joined. The result is a list of *units*, which a scanner
reads from both ends. docs/decisions/offline.md explains the differences from the paper.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from .density import DENSEST, Costs, density
from .prefix_tree import PrefixTree

T = TypeVar("T")
MODES = ("proportional", "paper", "off")
PORTION = 0.25  # largest fraction of KV memory of a joined unit
TRIES = 5  # tries to find the allowance whose real waste is the wanted one
GROWTH = 8.0  # growth of the allowance between tries, while the real waste is small


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRules:
    """The settings of the order. Raises ValueError if one is out of range.

    mode: how the allowance for computing tokens twice is divided among the children of an opened node: ``proportional`` to
    their prompt tokens, minus the cost of opening; evenly as in the ``paper``; ``off`` opens the root only. allowance: of
    the root, as a fraction of all prompt tokens. loss: with ``proportional``, a smaller allowance as a fraction of the
    tokens that need not be computed. likeness: units whose densities differ by less are joined; 0: none.
    """

    mode: str = MODES[0]
    allowance: float = 0.01
    loss: float = 0.02
    likeness: float = 0.10

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; the order of a batch splits nodes by one of: {', '.join(MODES)}")
        if not 0.0 <= self.allowance <= 1.0:
            raise ValueError(f"allowance is {self.allowance!r}; give the share of prompt tokens computed twice, 0 to 1")
        if not 0.0 <= self.loss <= 1.0:
            raise ValueError(f"loss is {self.loss!r}; give the share of shared tokens that are computed twice, 0 to 1")
        if not 0.0 <= self.likeness <= 10.0:
            raise ValueError(f"likeness is {self.likeness!r}; give by how much densities of joined units differ, 0 to 10")


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests that run one after the other, in a depth-first order of the prefix tree.

    comp, mem: seconds; a token shared with the request before counts once. tokens: prompt tokens computed. positions: KV
    that it holds if all of it runs at once, each request with half of its answer.
    """

    requests: array[int]
    comp: float
    mem: float
    tokens: int
    positions: float

    @property
    def rho(self) -> float:
        """The density."""
        return density(self.comp, self.mem)


class Weigher:
    """The work of requests in a given order. ``outputs``: tokens of each answer; it is read again at each call."""

    __slots__ = ("costs", "outputs", "tree")

    def __init__(self, tree: PrefixTree, costs: Costs, outputs: Sequence[float]) -> None:
        self.tree = tree
        self.costs = costs
        self.outputs = outputs

    def comp(self, request: int, before: int = -1) -> float:
        """Return the seconds of compute of a request that runs after ``before`` (-1: after none that shares anything)."""
        behind = self.tree.shared(before, request) if before >= 0 else 0
        return self.costs.prompt(self.tree.length[request] - behind, behind) + self.costs.answer(self.outputs[request])

    def mem(self, request: int) -> float:
        """Return the seconds of reading KV of a request."""
        return self.costs.mem(self.tree.length[request], self.outputs[request])

    def unit(self, requests: Iterable[int], before: int = -1) -> Unit:
        """Return a unit of these requests in order, after ``before``.

        The work of units in a row adds up to their requests' work.
        """
        found = array("i", requests)
        tree = self.tree
        comp = 0.0
        mem = 0.0
        tokens = 0
        held = 0.0
        for request in found:
            comp += self.comp(request, before)
            mem += self.mem(request)
            tokens += tree.length[request] - (tree.shared(before, request) if before >= 0 else 0)
            held += self.outputs[request]
            before = request
        return Unit(found, comp, mem, tokens, tokens + held / 2.0)

    def units(self, groups: Iterable[Iterable[int]]) -> list[Unit]:
        """Return one unit for each group that is not empty, each after the one before."""
        found: list[Unit] = []
        for group in groups:
            unit = self.unit(group, found[-1].requests[-1] if found else -1)
            if unit.requests:
                found.append(unit)
        return found

    def whole(self) -> Unit:
        """Return all requests in the tree's order, with the least compute possible: its density is a job's target."""
        return self.unit(self.tree.order)


# What is kept together: its density; where it begins and ends in the sequence; positions that it holds without the tokens
# above all of it, and their number. A bare tuple of numbers is ignored by the garbage collector, which would walk a
# large job's hundred thousand named ones again and again; in whatever thread it does, the event loop waits.
_Piece = tuple[float, int, int, float, int]
_RHO, _BEGIN = 0, 1


class _Layers:
    """The tree sorted by density, layer by layer, of all requests or of some.

    By node: ``comp``, ``mem`` (sums below it with its own tokens), ``live`` (requests), ``tokens`` (of their prompts),
    ``held`` (positions), ``start`` (where they begin in ``sequence``, which is depth-first).
    """

    def __init__(self, weigher: Weigher, requests: Iterable[int]) -> None:
        self.tree = tree = weigher.tree
        nodes = len(tree.parent)
        self.comp, self.mem, self.held = (array("d", bytes(8 * nodes)) for _ in range(3))
        self.live, self.tokens, self.start = (array("q", bytes(8 * nodes)) for _ in range(3))
        for request in requests:
            leaf, output = tree.rank[request], weigher.outputs[request]
            self.comp[leaf], self.mem[leaf] = weigher.costs.answer(output), weigher.mem(request)
            self.live[leaf] = 1
            self.tokens[leaf] = tree.length[request]
            self.held[leaf] = output / 2.0
        self.distinct = 0  # distinct tokens of all live requests
        self._add_up(weigher.costs)
        self.below: dict[int, list[int]] = {}  # inner node: its children with requests, the densest first
        self.sequence = array("i")
        self._walk()

    def _add_up(self, costs: Costs) -> None:
        parent, depth = self.tree.parent, self.tree.depth
        for node in range(self.tree.root):  # children first
            if self.live[node]:
                above = parent[node]
                behind = depth[above]
                self.comp[node] += costs.prompt(depth[node] - behind, behind)
                self.held[node] += depth[node] - behind
                self.distinct += depth[node] - behind
                for column in (self.comp, self.mem, self.held):
                    column[above] += column[node]
                self.live[above] += self.live[node]
                self.tokens[above] += self.tokens[node]

    def _walk(self) -> None:
        tree, waiting = self.tree, [self.tree.root]
        while waiting:
            node = waiting.pop()
            self.start[node] = len(self.sequence)
            if node < tree.count:
                self.sequence.append(tree.order[node])
            else:
                below = [child for child in tree.children(node) if self.live[child]]
                below.sort(key=self.rho, reverse=True)
                self.below[node] = below
                waiting += reversed(below)

    def rho(self, node: int) -> float:
        return density(self.comp[node], self.mem[node])

    def fork(self, node: int) -> int:
        """Return the first node from here on at which live requests part; the root stays."""
        while node != self.tree.root and len(below := self.below.get(node, [])) == 1:
            node = below[0]
        return node

    def piece(self, nodes: Sequence[int]) -> _Piece:
        """Return the piece of some adjacent children of one node."""
        comp, mem, held = (sum(column[node] for node in nodes) for column in (self.comp, self.mem, self.held))
        begin, end = self.start[nodes[0]], self.start[nodes[-1]] + self.live[nodes[-1]]
        return density(comp, mem), begin, end, held, self.tree.depth[self.tree.parent[nodes[0]]]

    def shared(self, before: int, piece: _Piece) -> int:
        """Return the tokens that a piece shares with the request before it (-1: none)."""
        _, begin, *_ = piece
        return self.tree.shared(before, self.sequence[begin]) if before >= 0 else 0

    def last(self, piece: _Piece) -> int:
        _, _, end, *_ = piece
        return self.sequence[end - 1]

    def requests(self, pieces: Iterable[_Piece]) -> array[int]:
        found = array("i")
        for _, begin, end, *_ in pieces:
            found += self.sequence[begin:end]
        return found


def density_order(
    weigher: Weigher, rules: OrderRules = OrderRules(), memory: int = 0, requests: Iterable[int] | None = None
) -> list[Unit]:
    """Return all requests (or these), each once, in units by density, the densest first.

    memory: positions of KV (0: no unit is too large to be joined). In the mode ``proportional``, waste is at most the
    allowance and the loss, as counted in the result. It takes as long as sorting; a hundred thousand requests take some
    seconds.
    """
    layers = _Layers(weigher, range(weigher.tree.count) if requests is None else requests)
    if not layers.sequence:
        return []

    def attempt(allowance: float) -> tuple[list[list[_Piece]], int]:
        pieces = sorted(_split(layers, rules, allowance), key=itemgetter(_RHO), reverse=True)
        groups = _merge(layers, pieces, rules.likeness, PORTION * memory) if rules.likeness else [[one] for one in pieces]
        return groups, weigher.tree.computed(layers.requests(chain.from_iterable(groups))) - layers.distinct

    tokens = layers.tokens[weigher.tree.root]
    limit = rules.allowance * tokens
    if rules.mode == MODES[0]:
        groups = largest_within(min(limit, rules.loss * (tokens - layers.distinct)), attempt)
    else:
        groups, _ = attempt(limit)
    return weigher.units(layers.requests(group) for group in groups)


def largest_within(limit: float, attempt: Callable[[float], tuple[T, int]]) -> T:
    """Return the result of the largest allowance, of few that are tried, that wastes at most ``limit`` tokens.

    Opened parts often stay together after all, so that more can be opened than would be paid for at worst.
    """
    best = None
    allowance = limit
    low = 0.0
    high = float("inf")
    for _ in range(TRIES if limit else 0):
        found, wasted = attempt(allowance)
        if wasted <= limit:
            if found == best or 2 * wasted > limit:
                return found
            best, low = found, allowance
        else:
            high = allowance
        allowance = low * GROWTH if high == float("inf") else (low * high) ** 0.5 if low else high * limit / wasted / 2.0
    return attempt(0.0)[0] if best is None else best


def _split(layers: _Layers, rules: OrderRules, allowance: float) -> list[_Piece]:
    """Return the pieces that are kept whole; each request is in one. The root is always opened, which costs nothing."""
    tree = layers.tree
    kept, waiting = [], [(tree.root, allowance)]
    while waiting:
        node, allowance = waiting.pop()
        last = layers.fork(node)
        below, depth = layers.below.get(last, []), tree.depth[last]
        if not below or (depth and rules.mode == "off") or (rules.mode == "paper" and depth * len(below) > allowance):
            kept.append(layers.piece([node]))
        elif rules.mode == "paper":
            waiting += [(child, allowance / len(below)) for child in reversed(below)]
        else:
            price = depth * (len(_runs(layers, below, 1.0 + rules.likeness)) - 1)
            if depth and price >= allowance:
                kept += _cut(layers, node, below, 1 + int(allowance / depth))
                continue
            total = sum(layers.tokens[child] for child in below if layers.live[child] > 1) or 1  # leaves need none
            waiting += [(child, (allowance - price) * layers.tokens[child] / total) for child in reversed(below)]
    return kept


def _cut(layers: _Layers, node: int, below: Sequence[int], count: int) -> list[_Piece]:
    """Cut a node that cannot be opened wholly into at most ``count`` runs of children, equally wide on a scale of ratios."""
    if count < 2:
        return [layers.piece([node])]
    factor = (layers.rho(below[0]) / max(layers.rho(below[-1]), 1.0 / DENSEST)) ** (1.0 / count) * (1.0 + 1e-9)
    runs = _runs(layers, below, factor)
    return [layers.piece(run) for run in runs] if len(runs) > 1 else [layers.piece([node])]


def _runs(layers: _Layers, below: Sequence[int], factor: float) -> list[list[int]]:
    """Return children, the densest first, in runs whose first is at most ``factor`` times as dense as the last."""
    runs: list[list[int]] = []
    least = float("inf")
    for child in below:
        rho = layers.rho(child)
        if rho < least:
            runs.append([])
            least = rho / factor
        runs[-1].append(child)
    return runs


def _merge(layers: _Layers, pieces: Sequence[_Piece], likeness: float, limit: float) -> list[list[_Piece]]:
    """Join neighbors of like density, in depth-first order, if no sharing is lost; at most ``limit`` positions in each."""
    groups: list[list[_Piece]] = []
    begin, before = 0, -1
    while begin < len(pieces):
        least, end = pieces[begin][_RHO] / (1.0 + likeness), begin + 1
        while end < len(pieces) and pieces[end][_RHO] >= least:
            end += 1
        band, after = list(pieces[begin:end]), list(pieces[end : end + 1])
        deep = sorted(band, key=itemgetter(_BEGIN))
        if _shared(layers, before, deep + after) >= _shared(layers, before, band + after):
            groups += _portions(layers, deep, limit)
        else:
            groups += [[piece] for piece in band]
        begin, before = end, layers.last(groups[-1][-1])
    return groups


def _shared(layers: _Layers, before: int, pieces: Sequence[_Piece]) -> int:
    """Return the tokens that pieces share with the one before each, the first with a request."""
    total = 0
    for piece in pieces:
        total += layers.shared(before, piece)
        before = layers.last(piece)
    return total


def _portions(layers: _Layers, pieces: Sequence[_Piece], limit: float) -> list[list[_Piece]]:
    """Cut a row of pieces so that no group but a single piece holds more positions than ``limit`` (0: no bound)."""
    held, before = 0.0, -1
    groups: list[list[_Piece]] = [[]]
    for piece in pieces:
        *_, alone, above = piece
        more = alone + above
        if before >= 0 and limit and held + more - layers.shared(before, piece) > limit:
            groups.append([])
            held, before = 0.0, -1
        held += more - layers.shared(before, piece)
        groups[-1].append(piece)
        before = layers.last(piece)
    return groups


def waste(tree: PrefixTree, units: Iterable[Unit]) -> int:
    """Return the prompt tokens that these units compute, one after the other, beyond the distinct ones of their requests."""
    requests = [request for unit in units for request in unit.requests]
    return tree.computed(requests) - tree.computed(sorted(requests, key=tree.rank.__getitem__))
