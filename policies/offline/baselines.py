"""Orders that engines run a batch in today: what ours is measured against.

Each is a permutation of the requests for the same scanner, engine, memory and estimates (BlendServe, section "Baselines"):
the order is the only difference. Depth-first is that of vLLM, SGLang and NanoFlow with a prefix cache; the policies named
by weight and by longest prefix are SGLang's (its section "Cache-aware scheduling").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockwright.policies.offline.prefix_tree import PrefixTree

FEW_WAITING = 128  # SGLang sorts by the longest cached prefix while no more wait


def depth_first(tree: PrefixTree) -> list[int]:
    """Children in the order of their tokens."""
    return list(tree.order)


def depth_first_by_weight(tree: PrefixTree) -> list[int]:
    """The child with the most requests below it first, at each node (SGLang's ``dfs-weight``); leaves as they are."""
    raise NotImplementedError


def first_come(count: int) -> list[int]:
    """As the file has them."""
    return list(range(count))


def at_random(numbers: Sequence[float]) -> list[int]:
    """By a number drawn for each: NanoFlow-Balance, which mixes requests and forgets prefixes."""
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def longest_prefix(waiting: Sequence[int], cached: Callable[[int], int]) -> list[int]:
    """The longest cached prefix first, while at most ``FEW_WAITING`` wait; else as they came (SGLang's ``lpm``)."""
    if len(waiting) > FEW_WAITING:
        return list(waiting)
    return sorted(waiting, key=cached, reverse=True)
