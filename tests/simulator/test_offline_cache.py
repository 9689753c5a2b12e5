"""The simulated prefix cache: what it holds, finds and evicts, beside a plain model of it."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.offline.prefix_tree import PrefixTree, packed
from blockwright.simulator.offline_cache import PrefixCache


def test_a_shared_prefix_is_held_once_and_found_by_the_next() -> None:
    tree = PrefixTree([packed([1, 2, 3, 4]), packed([1, 2, 3, 5, 6]), packed([9])])
    cache = PrefixCache(tree, 100)
    assert (cache.cached(0), cache.begin(0), cache.held) == (0, 0, 4)
    assert (cache.cached(1), cache.begin(1), cache.held) == (3, 3, 6)
    cache.grow(5)
    cache.end(0, 5, keep=True)
    assert (cache.held, cache.idle) == (5, 6)
    cache.end(1, 0, keep=True)
    assert (cache.held, cache.idle) == (0, 11)
    assert (cache.cached(0), cache.cached(2)) == (3, 0), "what one alone had is nobody else's"


def test_the_oldest_goes_first_and_a_prefix_after_what_is_below_it() -> None:
    tree = PrefixTree([packed([1, 1, 1, n]) for n in range(2)] + [packed([2, 2, n, n]) for n in range(2)])
    cache = PrefixCache(tree, 9)
    for request in (0, 2):
        cache.begin(request)
        cache.end(request, 0, keep=True)
    assert (cache.idle, cache.cached(1), cache.cached(3)) == (8, 3, 2)
    cache.begin(3)
    cache.trim()
    assert (cache.held, cache.idle, cache.cached(1), cache.cached(2)) == (4, 5, 3, 2), "a tail went, no prefix"
    cache.grow(1)
    assert (cache.held, cache.idle, cache.cached(1)) == (5, 2, 0)
    cache.grow(3)
    assert (cache.held, cache.idle, cache.cached(2)) == (8, 0, 2), "what runs keeps its prefix"


def test_what_is_stopped_leaves_nothing_of_its_own() -> None:
    tree = PrefixTree([packed([1, 2]), packed([1, 3])])
    cache = PrefixCache(tree, 10)
    cache.begin(0)
    cache.grow(4)
    cache.end(0, 4, keep=False)
    assert (cache.held, cache.idle, cache.cached(1)) == (0, 1, 1)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_counted_twice_or_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    prompts = [[chance.randrange(2) for _ in range(chance.randint(1, 9))] for _ in range(40)]
    tree = PrefixTree([packed(prompt) for prompt in prompts])
    cache, running = PrefixCache(tree, 60), dict[int, int]()
    for _ in range(600):
        request = chance.randrange(40)
        if request in running:
            cache.end(request, running.pop(request), keep=chance.random() < 0.7)
        elif cache.held < 45:
            assert cache.begin(request) <= len(prompts[request])
            running[request] = 0
        if running and chance.random() < 0.5 and cache.held < 55:
            running[chance.choice([*running])] += 1
            cache.grow(1)
        cache.trim()
        shared = {tuple(prompts[one][:end]) for one in running for end in range(1, inner(tree, one) + 1)}
        own = sum(len(prompts[one]) - inner(tree, one) + made for one, made in running.items())
        assert cache.held == len(shared) + own
        assert 0 <= cache.idle <= 60 - cache.held
        for one in running:
            assert cache.cached(one) == inner(tree, one)


def inner(tree: PrefixTree, request: int) -> int:
    """Tokens of a prompt that are another one's too."""
    return tree.depth[tree.parent[tree.rank[request]]]
