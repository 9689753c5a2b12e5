"""Baseline orders, in which other engines run a batch today, for comparison with ours.

Each is a permutation of the requests for the same scanner, engine, memory and estimates (BlendServe, section "Baselines"):
the order is the only difference. Depth-first is how vLLM, SGLang and NanoFlow run a batch that is sorted for their prefix
caches; the orders by weight and by longest prefix are SGLang's (its section "Cache-aware scheduling").
"""

from __future__ import annotations

from collections.abc import Sequence

from .prefix_tree import PrefixTree

FEW_WAITING = 128  # SGLang sorts by the longest cached prefix while at most this many wait


def depth_first(tree: PrefixTree) -> list[int]:
    """Return the requests with children in the order of their tokens."""
    return list(tree.order)


def depth_first_by_weight(tree: PrefixTree) -> list[int]:
    """Return the requests with, at each node, the child with the most requests below it first (SGLang's ``dfs-weight``)."""
    found, waiting = [], [tree.root]
    while waiting:
        node = waiting.pop()
        if node < tree.count:
            found.append(tree.order[node])
        else:
            waiting += sorted(tree.children(node), key=lambda child: tree.end[child] - tree.begin[child])
    return found


def longest_prefix(tree: PrefixTree) -> list[int]:
    """Return the requests in order of arrival, but the last ones by shared prefixes.

    This is SGLang's ``lpm``, which looks at the cache while few requests wait.
    """
    first = max(tree.count - FEW_WAITING, 0)
    return [*range(first), *sorted(range(first, tree.count), key=tree.rank.__getitem__)]


def at_random(numbers: Sequence[float]) -> list[int]:
    """Return the requests by a random number for each: NanoFlow-Balance, which mixes requests and ignores prefixes."""
    return sorted(range(len(numbers)), key=numbers.__getitem__)
