"""Slots of one layout: owned once, in groups of whole chunks, whatever the order of takes, returns and forks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.slots import SlotAllocator

CHUNK = 64 * 1024


@pytest.mark.parametrize("chunk", [CHUNK, 2 << 20])
@pytest.mark.parametrize(
    ("part", "group_chunks", "group_slots"),
    [((1, 1), 1, 1), ((1, 4), 1, 4), ((4, 1), 4, 1), ((3, 8), 3, 8), ((5, 16), 5, 16)],
)
def test_groups_are_whole_chunks_and_whole_slots(
    chunk: int, part: tuple[int, int], group_chunks: int, group_slots: int
) -> None:
    allocator = SlotAllocator("kv", chunk * part[0] // part[1], ChunkPool(100, chunk))
    assert (allocator.group_chunks, allocator.group_slots) == (group_chunks, group_slots)


def test_slots_that_are_freed_may_return_no_more_than_the_groups_they_are_in() -> None:
    allocator = SlotAllocator("kv", CHUNK * 3 // 8, ChunkPool(30, CHUNK))
    assert allocator.may_return(1) == 0
    taken = allocator.allocate(24)
    assert taken is not None
    assert [allocator.may_return(n) for n in (0, 1, 2, 3, 24)] == [0, 3, 6, 9, 9], "of three groups of three chunks"
    allocator.free(taken[8:16])
    assert [allocator.may_return(n) for n in (1, 2, 3)] == [3, 6, 6]


@given(st.integers(0, 1000), st.sampled_from([CHUNK // 4, CHUNK * 2, 24 * 1024]))
def test_slots_are_owned_once_and_empty_groups_return_their_chunks(seed: int, slot_bytes: int) -> None:
    chance, pool = random.Random(seed), ChunkPool(24, CHUNK)
    allocator, held = SlotAllocator("kv", slot_bytes, pool), list[int]()
    for _ in range(60):
        if chance.random() < 0.5:
            n, room = chance.randint(1, 9), allocator.room
            taken = allocator.allocate(n)
            assert (taken is None) == (n > room)
            held += taken or []
        elif held:
            chance.shuffle(held)
            allocator.free([held.pop() for _ in range(chance.randint(1, len(held)))])
        allocator.check(held)
        pool.check(allocator.chunks)
    allocator.free(held)
    assert pool.free == 24
    backed: dict[int, int] = {}
    for edit in pool.take_edits():
        backed[edit.offset] = backed.get(edit.offset, 0) + (-1 if edit.back else 1)
        assert backed[edit.offset] in (0, 1)
    assert not any(backed.values())


@given(st.integers(0, 1000))
def test_a_fork_and_its_origin_go_their_own_ways(seed: int) -> None:
    """Both take and free slots of groups whose lists they share at first."""
    chance, pool = random.Random(seed), ChunkPool(24, CHUNK)
    first, held = SlotAllocator("kv", CHUNK // 8, pool), list[int]()
    for _ in range(3):
        held += first.allocate(chance.randint(1, 30)) or []
        chance.shuffle(held)
        first.free([held.pop() for _ in range(len(held) // 2)])
    sides = [(first, held, pool)]
    for _ in range(2):
        origin, slots, chunks = chance.choice(sides)
        copied = chunks.fork()
        sides.append((origin.fork(copied), slots.copy(), copied))
    for _ in range(60):
        allocator, slots, chunks = chance.choice(sides)
        if chance.random() < 0.5:
            slots += allocator.allocate(chance.randint(1, 9)) or []
        elif slots:
            chance.shuffle(slots)
            allocator.free([slots.pop() for _ in range(chance.randint(1, len(slots)))])
        for allocator, slots, chunks in sides:
            allocator.check(slots)
            chunks.check(allocator.chunks)
