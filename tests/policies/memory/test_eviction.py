"""Which cached pages give way: the one unused for longest, of any layout; and none for an answer that is no."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory import eviction
from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.idle_pages import IdlePages
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.model.runs import Span
from blockwright.tests.claims import claim

CHUNK = 64 * 1024
SPAN = Span.of(0, "kv", [(b"a0",), (b"a1",), (b"a2",)], [b"l0", b"l1", b"line"])
WIDE = Span.of(0, "wide", [(b"b0",)], [b"wide"])


def cached(chunks: int, *spans: Span) -> PageTable:
    """One idle page of each span, oldest first, found by its place; a chunk has four slots of "kv" or one of "wide"."""
    pages = PageTable(ChunkPool(chunks, CHUNK))
    pages.add_layout("kv", CHUNK // 4)
    pages.add_layout("wide", CHUNK)
    for place, span in enumerate(spans):
        handle = pages.allocate(span, "")
        assert handle is not None
        pages.publish(handle, bytes([place]))
        pages.release([handle], "a")
    return pages


def present(pages: PageTable, *spans: Span) -> list[bool]:
    return [pages.find(bytes([place]), span) is not None for place, span in enumerate(spans)]


@claim("The page unused for longest is evicted first", of="serving")
def test_the_page_unused_for_longest_gives_way() -> None:
    pages = cached(3, *[SPAN] * 4)
    for place in (0, 1, 3):  # used again: the third is the oldest now
        handle = pages.find(bytes([place]), SPAN)
        assert handle is not None
        pages.share(handle, "a")
        pages.release([handle], "a")
    assert eviction.allocate_page(pages, SPAN, "") is not None
    assert present(pages, *[SPAN] * 4) == [True, True, False, True]
    assert pages.evicted == 1


def test_no_room_when_nothing_is_cached() -> None:
    pages = cached(1)
    assert eviction.allocate_page(pages, SPAN, "") is not None
    assert eviction.allocate_page(pages, SPAN, "") is None
    assert not eviction.evict_oldest(pages)


def test_idle_pages_of_the_same_layout_count_as_room_but_for_those_that_are_kept() -> None:
    pages = cached(3, *[SPAN] * 3)
    assert eviction.allocate_page(pages, SPAN, "") is not None
    assert eviction.make_room(pages, {"kv": 3 * SPAN.layers}, {})
    assert not eviction.make_room(pages, {"kv": 4 * SPAN.layers}, {})
    assert not eviction.make_room(pages, {"kv": 3 * SPAN.layers}, {"kv": 1})
    assert pages.evicted == 0


def test_chunks_in_idle_pages_of_other_layouts_are_freed_now_where_that_is_enough() -> None:
    spans = (WIDE, SPAN, WIDE, WIDE)
    pages = cached(4, *spans)
    assert not eviction.make_room(pages, {"kv": 17}, {})
    assert pages.evicted == 0
    assert eviction.make_room(pages, {"kv": 9}, {})
    assert present(pages, *spans) == [False, True, False, True]


def test_pages_that_a_component_made_go_with_it() -> None:
    pages = cached(4, SPAN, WIDE)
    eviction.evict_components(pages, frozenset((b"a1",)), ())
    assert present(pages, SPAN, WIDE) == [False, True]


@given(st.integers(0, 1000))
def test_the_order_of_idle_pages_is_that_of_a_list(seed: int) -> None:
    chance = random.Random(seed)
    idle = IdlePages()
    seen = list[int]()
    idle.add_layout("kv")
    for _ in range(80):
        handle = chance.randrange(20)
        if handle in seen:
            seen.remove(handle)
            idle.remove(handle, "kv", 2)
        else:
            seen.append(handle)
            idle.add(handle, "kv", 2)
        if chance.random() < 0.05:
            idle = idle.fork()
        assert (list(idle), idle.count, idle.slots["kv"]) == (seen, len(seen), 2 * len(seen))
        assert all((h in idle) == (h in seen) for h in range(25))
