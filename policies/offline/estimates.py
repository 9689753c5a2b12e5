"""Estimates of answer lengths of a batch, from a few requests that run first.

After BlendServe (section "Output length sampling"): requests below the same node of the prefix tree answer alike, so an
estimate is the mean of the samples below the nearest node above a request that has some. One in a hundred is sampled;
every large subtree directly below the root has at least one sample. If the tagger has an estimate for each request, the
mean becomes a ratio: what samples took divided by what was estimated for them (the ratio estimator; Cochran, "Sampling
Techniques", chapter 6). Pure: the choice of samples comes from numbers that are passed in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from .prefix_tree import PrefixTree

PROBABILITY = 0.01  # probability that a request is a sample
LARGE = 100  # a child of the root with this many requests has at least one sample
UNKNOWN = -1.0


def choose_samples(
    tree: PrefixTree, numbers: Sequence[float], probability: float = PROBABILITY, fixed: Sequence[int] = ()
) -> list[int]:
    """Return the requests that run first, ascending.

    These are the requests whose number (uniform in [0, 1), one for each) is below ``probability``; and, if a child of the
    root has ``LARGE`` requests and none of these, the one with its least number. With probability 0 there are none.
    Requests with a ``fixed`` length teach nothing and are never drawn. Raises ValueError if the probability is not one, or
    the columns are not as long as the tree's.
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"the share of requests that are sampled is {probability!r}; give 0 to 1")
    _check(tree, numbers=numbers, fixed=fixed or numbers)
    if not probability:
        return []
    free = [request for request in range(tree.count) if not (fixed and fixed[request])]
    chosen = {request for request in free if numbers[request] < probability}
    for child in tree.children(tree.root):
        if tree.end[child] - tree.begin[child] < LARGE:
            continue
        below = [r for r in tree.order[tree.begin[child] : tree.end[child]] if not (fixed and fixed[r])]
        if below and chosen.isdisjoint(below):
            chosen.add(min(below, key=lambda request: (numbers[request], request)))
    return sorted(chosen)


class Estimates:
    """Lengths of answers, by request, in tokens: the truth if known, else an estimate.

    limits: most tokens of each answer, used until there is a sample. fixed: lengths known beforehand, 0 if unknown (or
    empty). hints: estimates of a tagger, above 0 (or empty), used instead of limits. Raises ValueError if a column is not
    as long as the tree's, or a value is out of range.
    """

    def __init__(
        self, tree: PrefixTree, limits: Sequence[int], *, fixed: Sequence[int] = (), hints: Sequence[float] = ()
    ) -> None:
        _check(tree, limits=limits, fixed=fixed or limits, hints=hints or limits)
        for request, limit in enumerate(limits):
            if limit < 1:
                raise ValueError(f"the limit of request {request} is {limit} tokens; give 1 or more")
            if hints and not 0.0 < hints[request] < float("inf"):
                raise ValueError(f"the hint of request {request} is {hints[request]!r} tokens; give more than 0")
            if fixed and fixed[request] < 0:
                raise ValueError(f"the fixed length of request {request} is {fixed[request]} tokens; give 0 where unknown")
        self.tree = tree
        self._limits = array("q", limits)
        self._hints = array("d", hints)
        lengths = zip(fixed, limits, strict=True) if fixed else []
        self._known = array("q", [min(length, limit) or -1 for length, limit in lengths] or [-1] * tree.count)
        nodes = len(tree.parent)
        self._taken = array("d", bytes(8 * nodes))  # by node: tokens of the answers of samples below
        self._hinted = array("d", bytes(8 * nodes))  # by node: sum of their hints, or their number

    def fork(self) -> Estimates:
        """Return a copy for another thread."""
        copy = object.__new__(Estimates)
        copy.tree = self.tree
        copy._limits = self._limits
        copy._hints = self._hints
        copy._known = self._known[:]
        copy._taken = self._taken[:]
        copy._hinted = self._hinted[:]
        return copy

    def finished(self, request: int, length: int) -> None:
        """Record the length of a request's answer, which is a sample from now on. A repetition changes nothing.

        Costs the request's depth in nodes.
        """
        if self._known[request] >= 0:
            return
        self._known[request] = length
        hint = self._hints[request] if self._hints else 1.0
        parent, node = self.tree.parent, self.tree.rank[request]
        while parent[node] != node:
            node = parent[node]
            self._taken[node] += length
            self._hinted[node] += hint

    def output(self, request: int) -> float:
        """Return the estimated tokens of one answer by present knowledge, between 1 and the limit."""
        parent, node = self.tree.parent, self.tree.rank[request]
        while not self._hinted[node] and parent[node] != node:
            node = parent[node]
        return self._of(request, self._taken[node] / self._hinted[node] if self._hinted[node] else UNKNOWN)

    def outputs(self) -> array[float]:
        """Return ``output`` of all requests, in one pass over the tree."""
        tree = self.tree
        ratios = array("d", bytes(8 * len(tree.parent)))
        ratios[tree.root] = UNKNOWN
        for node in range(tree.root, -1, -1):  # parents first
            hinted = self._hinted[node]
            ratios[node] = self._taken[node] / hinted if hinted else ratios[tree.parent[node]]
        return array("d", [self._of(request, ratios[tree.rank[request]]) for request in range(tree.count)])

    def _of(self, request: int, ratio: float) -> float:
        if self._known[request] >= 0:
            return float(self._known[request])
        if ratio >= 0.0:
            guess = ratio * self._hints[request] if self._hints else ratio
        else:
            guess = self._hints[request] if self._hints else self._limits[request]
        return min(max(guess, 1.0), float(self._limits[request]))


def _check(tree: PrefixTree, **columns: Sequence[float]) -> None:
    for name, column in columns.items():
        if len(column) != tree.count:
            raise ValueError(f"{name} has {len(column)} values; the tree has {tree.count} requests: give one for each")
