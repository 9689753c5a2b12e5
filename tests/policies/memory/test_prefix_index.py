"""The prefix index is a dict, in whatever way it was forked."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.prefix_index import Key, PrefixIndex


def key(n: int) -> Key:
    return (n.to_bytes(2, "big"), b"line", 0)


@given(st.integers(0, 1000), st.sampled_from([5, 3000]))
def test_forks_are_dicts_that_go_their_own_ways(seed: int, keys: int) -> None:
    """With few keys each is changed often; with many the changes of a fork are joined with what it shares."""
    chance = random.Random(seed)
    sides: list[tuple[PrefixIndex, dict[Key, int]]] = [(PrefixIndex(), {})]
    for _ in range(2000):
        index, outcome = chance.choice(sides)
        page = key(chance.randrange(keys))
        assert index.get(page) == outcome.get(page)
        if page in outcome:
            index.remove(page)
            del outcome[page]
        else:
            outcome[page] = chance.randrange(100)
            index.put(page, outcome[page])
        if chance.random() < 0.01 and len(sides) < 5:
            sides.append((index.fork(), outcome.copy()))
    for index, outcome in sides:
        assert index.entries() == outcome
