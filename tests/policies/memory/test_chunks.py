"""The chunk pool: every id is free or owned once, and the device hears of each change once, in order."""

from __future__ import annotations

import pytest

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.plan.sweep_plan import MapGroup


def test_chunks_that_are_not_there_are_an_answer() -> None:
    pool = ChunkPool(3, 4096)
    assert pool.commit("kv", 0, 4) is None
    assert pool.commit("kv", 0, 2) == [0, 1]
    assert pool.commit("kv", 2, 2) is None
    pool.give_back("kv", 0, [0])
    assert pool.free == 2
    pool.check([1])
    with pytest.raises(AssertionError, match="lost or owned twice"):
        pool.check([1, 0])


def test_what_was_returned_is_taken_before_what_was_never_used() -> None:
    pool = ChunkPool(10, 4096)
    taken = pool.commit("kv", 0, 4)
    assert taken == [0, 1, 2, 3]
    pool.give_back("kv", 1, [1])
    assert pool.commit("kv", 4, 3) == [1, 4, 5]


def test_the_device_hears_of_each_change_once_in_order() -> None:
    pool = ChunkPool(3, 4096)
    chunks = pool.commit("kv", 7, 1)
    assert chunks is not None
    pool.give_back("kv", 7, chunks)
    assert pool.pending
    assert pool.take_edits() == [MapGroup("kv", 7, [0], back=False), MapGroup("kv", 7, [0], back=True)]
    assert not pool.pending
    assert pool.take_edits() == []
