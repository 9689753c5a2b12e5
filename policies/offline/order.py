"""The order in which the requests of a batch run: by density, with prefixes kept together.

After BlendServe (sections "Layer sort", "Conditional node splitting" and "Merge"): children of each node of the prefix tree are
sorted by density, compute-heavy first; nodes are opened where few tokens are computed twice for it; what was opened is sorted as
a whole, and neighbours of like density are joined. The result is a list of *units*, which a scanner reads from both ends.

Compute is counted exactly: a shared token once, unless the order takes its sharers apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockwright.policies.offline.density import Costs, density
from blockwright.policies.offline.prefix_tree import PrefixTree

MODES = ("proportional", "paper", "off")
QUARTER = 0.25  # of KV memory: what a joined unit holds at most


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRules:
    """``mode``: how the allowance for computing tokens twice is divided among the children of an opened node: in proportion to
    their prompt tokens, less what opening took, or evenly as in the paper; ``off`` opens the root alone. ``allowance``: that of
    the root, as a share of all prompt tokens. ``likeness``: units whose densities differ by less are joined; 0: none."""

    mode: str = MODES[0]
    allowance: float = 0.01
    likeness: float = 0.10


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests that run one after the other, in a depth-first order of the prefix tree.

    ``comp`` and ``mem``: seconds, what is shared with the request before counted once. ``tokens``: prompt tokens computed.
    ``positions``: of KV that it holds if all of it runs at once, each at half of its answer."""

    requests: array[int]
    comp: float
    mem: float
    tokens: int
    positions: float

    @property
    def rho(self) -> float:
        """Density."""
        return density(self.comp, self.mem)


class Weigher:
    """What requests take in a given order. ``outputs``: tokens of each answer; it is read again at each call."""

    def __init__(self, tree: PrefixTree, costs: Costs, outputs: Sequence[float]) -> None:
        self.tree, self.costs, self.outputs = tree, costs, outputs

    def new(self, request: int, before: int = -1) -> int:
        """Prompt tokens that a request computes which runs after ``before`` (-1: after none that shares anything)."""
        raise NotImplementedError

    def comp(self, request: int, before: int = -1) -> float:
        """Seconds of compute of a request which runs after ``before``."""
        raise NotImplementedError

    def mem(self, request: int) -> float:
        """Seconds of reading KV of a request."""
        raise NotImplementedError

    def unit(self, requests: Iterable[int], before: int = -1) -> Unit:
        """Requests as they are ordered, after ``before``. The costs of units in a row add up to those of their requests."""
        raise NotImplementedError

    def whole(self) -> Unit:
        """All requests in the tree's order: the least compute that is possible. Its ``rho`` is what a scanner aims at."""
        raise NotImplementedError


def density_order(weigher: Weigher, rules: OrderRules = OrderRules(), memory: int = 0) -> list[Unit]:
    """All requests, each once: units by density, the densest first. ``memory``: positions of KV there are (0: no unit is too
    large to be joined). Time: that of sorting. Raises ValueError where a rule is out of range."""
    raise NotImplementedError


def waste(tree: PrefixTree, units: Sequence[Unit]) -> int:
    """Prompt tokens that this list of units computes beyond the distinct ones."""
    raise NotImplementedError
