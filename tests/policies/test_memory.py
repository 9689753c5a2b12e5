"""Chunks, slots, pages and residence: every id is free or owned once, whatever the order of events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.chunks import CHUNK, ChunkPool
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.memory.residence import Residence
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.runs import Span
from blockwright.policies.plan.sweep_plan import MapGroup

SPAN = Span(0, 3, b"line", "kv", frozenset({b"a0", b"a1", b"a2"}))
OTHER = Span(3, 1, b"other", "kv", frozenset({b"a3"}))


def table(chunks: int, slot_bytes: int = CHUNK // 4) -> tuple[ChunkPool, PageTable]:
    pool = ChunkPool(chunks)
    pages = PageTable()
    pages.add_layout(SlotAllocator("kv", slot_bytes, pool))
    return pool, pages


def test_chunks_that_are_not_there_are_an_answer() -> None:
    pool = ChunkPool(3)
    assert pool.take(4) is None
    assert pool.take(2) == [1, 0]
    assert pool.take(2) is None
    pool.give_back([0])
    pool.check([1])
    with pytest.raises(AssertionError, match="lost or owned twice"):
        pool.check([1, 0])


@pytest.mark.parametrize(
    ("slot_bytes", "group_chunks", "group_slots"),
    [(CHUNK, 1, 1), (CHUNK // 4, 1, 4), (CHUNK * 4, 4, 1), (24 * 1024, 3, 8), (20 * 1024, 5, 16)],
)
def test_groups_are_whole_chunks_and_whole_slots(slot_bytes: int, group_chunks: int, group_slots: int) -> None:
    allocator = SlotAllocator("kv", slot_bytes, ChunkPool(100))
    assert (allocator.group_chunks, allocator.group_slots) == (group_chunks, group_slots)


@given(st.integers(0, 1000), st.sampled_from([CHUNK // 4, CHUNK * 2, 24 * 1024]))
def test_slots_are_owned_once_and_empty_groups_return_their_chunks(seed: int, slot_bytes: int) -> None:
    chance, pool = random.Random(seed), ChunkPool(24)
    allocator, held, memory = SlotAllocator("kv", slot_bytes, pool), list[int](), list[MapGroup]()
    for _ in range(60):
        if chance.random() < 0.5:
            n, room = chance.randint(1, 9), allocator.room()
            taken = allocator.take(n, memory)
            assert (taken is None) == (n > room)
            held += taken or []
        elif held:
            chance.shuffle(held)
            gone = [held.pop() for _ in range(chance.randint(1, len(held)))]
            allocator.free(gone, memory)
        assert len(set(held)) == len(held) == allocator.used
        pool.check(allocator.chunks)
    allocator.free(held, memory)
    assert pool.free == 24
    backed = {0: 0}
    for edit in memory:
        backed[edit.offset] = backed.get(edit.offset, 0) + (-1 if edit.back else 1)
        assert backed[edit.offset] in (0, 1)
    assert not any(backed.values())


def test_a_private_page_is_freed_and_a_published_one_stays_as_cache() -> None:
    _, pages = table(4)
    private, known = pages.take(SPAN, ""), pages.take(SPAN, "")
    assert private is not None
    assert known is not None
    pages.publish(known, b"hash")
    pages.release(private)
    pages.release(known)
    assert pages.find(b"hash", SPAN) == known
    assert pages.find(b"hash", OTHER) is None
    assert pages.cached == 1
    pages.share(known)
    assert pages.cached == 0
    pages.check({known: 1})


def test_the_page_unused_for_longest_gives_way() -> None:
    _, pages = table(3)  # 12 slots: 4 pages
    handles = [pages.take(SPAN, "") for _ in range(4)]
    for i, handle in enumerate(handles):
        assert handle is not None
        pages.publish(handle, bytes([i]))
    for i in (2, 0, 1):
        pages.release(handles[i])  # type: ignore[arg-type]
    assert pages.take(SPAN, "") is not None
    assert [pages.find(bytes([i]), SPAN) is None for i in range(4)] == [False, False, True, False]
    assert pages.make_room({"kv": 2 * SPAN.layers}, {})
    assert not pages.make_room({"kv": 3 * SPAN.layers}, {})
    assert not pages.make_room({"kv": 2 * SPAN.layers}, {"kv": 1})
    assert pages.evicted == 1


def test_no_room_when_nothing_is_cached() -> None:
    _, pages = table(1)
    assert pages.take(SPAN, "") is not None
    assert pages.take(SPAN, "") is None


def test_equal_pages_made_twice_stay_private() -> None:
    _, pages = table(4)
    first, second = pages.take(SPAN, ""), pages.take(SPAN, "")
    assert first is not None
    assert second is not None
    pages.publish(first, b"hash")
    pages.publish(second, b"hash")
    pages.release(second)
    assert pages.find(b"hash", SPAN) == first
    assert pages.cached == 0


def test_parameters_push_cached_pages_out_but_not_pages_in_use() -> None:
    pool, pages = table(4)
    residence = Residence(pool, pages)
    used, cached = pages.take(SPAN, ""), pages.take(SPAN, "")
    assert used is not None
    assert cached is not None
    pages.publish(cached, b"hash")
    pages.release(cached)
    assert residence.load(b"big", "app", 4 * CHUNK) is None
    placed = residence.load(b"fits", "app", 3 * CHUNK - 5)
    assert placed is not None
    assert placed[1][-1].arena == "parameters"
    assert len(placed[1][-1].chunks) == 3
    pool.check(residence.chunks + pages.slots["kv"].chunks)
    pages.check({used: 1})


def test_a_component_is_loaded_once_and_goes_with_its_last_holder() -> None:
    pool, pages = table(4)
    residence = Residence(pool, pages)
    first = residence.load(b"c", "one", 10)
    assert first is not None
    assert residence.load(b"c", "two", 10) == (first[0], [])
    assert not residence.unload(b"c", "one")
    assert not residence.unload(b"c", "one")
    assert residence.unload(b"c", "two")
    assert pool.free == 4
    assert pages.memory[-1].back


def test_holes_between_components_do_not_refuse_a_load_that_fits() -> None:
    pool, pages = table(8)
    residence = Residence(pool, pages)
    for name in (b"a", b"b", b"c", b"d"):
        assert residence.load(name, "app", 2 * CHUNK) is not None
    for name in (b"a", b"c"):
        residence.unload(name, "app")
    assert residence.load(b"big", "app", 4 * CHUNK) is not None
    pool.check(residence.chunks)
