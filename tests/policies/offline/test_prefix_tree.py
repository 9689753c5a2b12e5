"""The radix tree in columns against sets of prefixes and a recursive tree, on a thousand small batches."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.offline.prefix_tree import PrefixTree, common_prefix, packed
from blockwright.tests.policies.offline.reference_tree import LARGEST, Node, grow, prefixes, random_prompts, shared


def as_nodes(tree: PrefixTree, prompts: list[tuple[int, ...]], node: int) -> Node:
    requests = sorted(tree.order[tree.begin[node] : tree.end[node]])
    below = [as_nodes(tree, prompts, child) for child in tree.children(node)]
    assert all(tree.parent[child] == node for child in tree.children(node))
    return Node(prompts[requests[0]][: tree.depth[node]] if requests else (), requests, below)


@pytest.mark.parametrize("part", range(10))
def test_the_tree_is_that_of_the_definition(part: int) -> None:
    for seed in range(100):
        random = Random(100 * part + seed)
        prompts = random_prompts(random)
        tree = PrefixTree([packed(prompt) for prompt in prompts])
        assert as_nodes(tree, prompts, tree.root) == grow(prompts, list(range(len(prompts))))
        assert tree.distinct == len(prefixes(prompts))
        assert tree.tokens == sum(map(len, prompts))
        assert [prompts[request] for request in tree.order] == sorted(prompts)
        assert all(tree.order[tree.rank[request]] == request for request in range(tree.count))
        for one in range(len(prompts)):
            for other in range(len(prompts)):
                assert tree.shared(one, other) == shared(prompts[one], prompts[other])


def test_what_an_order_computes() -> None:
    for seed in range(100):
        random = Random(seed)
        prompts = random_prompts(random)
        tree = PrefixTree([packed(prompt) for prompt in prompts])
        order = random.sample(range(len(prompts)), random.randint(0, len(prompts)))
        found = 0
        for place, request in enumerate(order):
            found += len(prefixes([prompts[request]]) - prefixes([prompts[order[place - 1]]] if place else []))
        assert tree.computed(order) == found >= len(prefixes([prompts[request] for request in order]))
        assert tree.computed(tree.order) == tree.distinct


def test_no_requests() -> None:
    tree = PrefixTree([])
    assert (tree.root, tree.tokens, tree.distinct, tree.sharing, tree.computed([])) == (0, 0, 0, 0.0, 0)
    assert list(tree.children(tree.root)) == []


def test_a_chain_of_prefixes_may_be_deep() -> None:
    """Each prompt a prefix of the next one: no recursion."""
    count = 1500
    tree = PrefixTree([packed(range(length)) for length in range(count)])
    assert tree.distinct == count - 1
    assert tree.shared(10, 1200) == 10
    assert tree.sharing == pytest.approx(1 - 2 / count)


def test_prefixes_end_at_tokens_wherever_bytes_differ() -> None:
    for length in (0, 1, 15, 16, 17, 79, 80, 81, 500):
        for token in (0, 1, 256, LARGEST):
            one, other = [7] * length, [7] * length
            assert common_prefix(packed(one), packed([*other, token])) == length
            assert common_prefix(packed([*one, token ^ 1, 5]), packed([*other, token, 5])) == length
            assert common_prefix(packed([*one, token ^ (1 << 31), 5]), packed([*other, token, 5])) == length


def test_bytes_are_in_the_order_of_tokens() -> None:
    tokens = [0, 1, 255, 256, 65535, 65536, LARGEST]
    assert sorted(tokens, key=lambda token: packed([token])) == tokens
    with pytest.raises(OverflowError):
        packed([LARGEST + 1])


def test_half_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 1 has 6 bytes; give 4 for each token"):
        PrefixTree([b"0123", b"012345"])
