"""Orders of other engines: each a permutation, depth-first where it says so."""

from __future__ import annotations

import random

from blockwright.policies.offline.baselines import at_random, depth_first, depth_first_by_weight, longest_prefix
from blockwright.policies.offline.prefix_tree import PrefixTree, packed


def tree(groups: int, size: int) -> PrefixTree:
    """Requests in turn of all groups; group g has g + 1 times ``size``."""
    made = [packed([7, group, member, 1]) for member in range(size * groups) for group in range(groups)]
    kept = [prompt for prompt in made if int.from_bytes(prompt[8:12], "big") < size * (prompt[7] + 1)]
    random.Random(3).shuffle(kept)
    return PrefixTree(kept)


def test_each_is_a_permutation_and_depth_first_computes_each_token_once() -> None:
    found = tree(3, 20)
    every = list(range(found.count))
    orders = [depth_first(found), depth_first_by_weight(found), longest_prefix(found), at_random([0.5] * found.count)]
    assert [sorted(order) for order in orders] == [every] * 4
    assert [found.computed(order) for order in orders[:2]] == [found.distinct] * 2
    assert found.computed(longest_prefix(found)) < found.tokens


def test_by_weight_the_child_with_most_requests_comes_first() -> None:
    found = tree(3, 5)
    prompts = {request: found.parent[found.rank[request]] for request in depth_first_by_weight(found)}
    sizes = [found.end[node] - found.begin[node] for node in dict.fromkeys(prompts.values())]
    assert sizes == [15, 10, 5]


def test_longest_prefix_is_first_come_while_many_wait() -> None:
    found = tree(4, 40)
    order = longest_prefix(found)
    assert order[: found.count - 128] == list(range(found.count - 128))
    assert order[-128:] == sorted(order[-128:], key=found.rank.__getitem__)


def test_at_random_goes_by_the_numbers() -> None:
    assert at_random([0.3, 0.1, 0.2]) == [1, 2, 0]
