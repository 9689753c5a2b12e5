"""Orders that engines run a batch in today: what ours is measured against.

Each is a permutation of the requests for the same scanner, engine, memory and estimates (BlendServe, section "Baselines"):
the order is the only difference. Depth-first is what vLLM, SGLang and NanoFlow run a batch in that is sorted for their
prefix caches; those by weight and by longest prefix are SGLang's (its section "Cache-aware scheduling").
"""

from __future__ import annotations

from collections.abc import Sequence

from .prefix_tree import PrefixTree

FEW_WAITING = 128  # SGLang sorts by the longest cached prefix while no more wait


def depth_first(tree: PrefixTree) -> list[int]:
    """Children in the order of their tokens."""
    return list(tree.order)


def depth_first_by_weight(tree: PrefixTree) -> list[int]:
    """The child with the most requests below it first, at each node (SGLang's ``dfs-weight``)."""
    found, waiting = [], [tree.root]
    while waiting:
        node = waiting.pop()
        if node < tree.count:
            found.append(tree.order[node])
        else:
            waiting += sorted(tree.children(node), key=lambda child: tree.end[child] - tree.begin[child])
    return found


def longest_prefix(tree: PrefixTree) -> list[int]:
    """As they came, and the last ones by what they share with each other (SGLang's ``lpm``, which looks at the cache while
    few wait)."""
    first = max(tree.count - FEW_WAITING, 0)
    return [*range(first), *sorted(range(first, tree.count), key=tree.rank.__getitem__)]


def at_random(numbers: Sequence[float]) -> list[int]:
    """By a number drawn for each: NanoFlow-Balance, which mixes requests and forgets prefixes."""
    return sorted(range(len(numbers)), key=numbers.__getitem__)
