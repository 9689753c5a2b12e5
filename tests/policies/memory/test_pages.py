"""Pages with their prefix index: private, published, idle; counted right in every state."""

from __future__ import annotations

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.model.runs import Span
from blockwright.tests.claims import claim

CHUNK = 64 * 1024
SPAN = Span.of(0, "kv", [(b"a0",), (b"a1",), (b"a2",)], [b"l0", b"l1", b"line"])
OTHER = Span.of(3, "kv", [(b"a3",)], [b"other"])


def table(chunks: int) -> PageTable:
    """With four slots in a chunk."""
    pages = PageTable(ChunkPool(chunks, CHUNK))
    pages.add_layout("kv", CHUNK // 4)
    return pages


def test_a_private_page_is_freed_and_a_published_one_stays_as_cache() -> None:
    pages = table(4)
    private, known = pages.allocate(SPAN, ""), pages.allocate(SPAN, "")
    assert private is not None
    assert known is not None
    pages.publish(known, b"hash")
    pages.release([private], "a")
    pages.release([known], "a")
    pages.check({})
    assert pages.find(b"hash", SPAN) == known
    assert pages.find(b"hash", OTHER) is None
    assert pages.cached == 1
    pages.share(known, "a")
    assert pages.cached == 0
    pages.check({known: 1})


def test_no_room_is_an_answer_even_where_something_is_cached() -> None:
    pages = table(1)
    handle = pages.allocate(SPAN, "")
    assert handle is not None
    assert pages.allocate(SPAN, "") is None
    pages.publish(handle, b"hash")
    pages.release([handle], "a")
    assert pages.allocate(SPAN, "") is None


def test_equal_pages_made_twice_stay_private() -> None:
    pages = table(4)
    first, second = pages.allocate(SPAN, ""), pages.allocate(SPAN, "")
    assert first is not None
    assert second is not None
    pages.publish(first, b"hash")
    pages.publish(second, b"hash")
    pages.release([second], "a")
    assert pages.find(b"hash", SPAN) == first
    assert pages.cached == 0


def test_whoever_made_a_page_pays_for_it() -> None:
    pages = table(4)
    handles = [pages.allocate(span, account) for span, account in ((SPAN, "a"), (OTHER, "b"), (OTHER, "a"))]
    assert pages.accounts.all_held() == {"a": 4 * CHUNK // 4, "b": CHUNK // 4}
    pages.share(handles[0], "a")  # type: ignore[arg-type]
    assert pages.shared_now() == 1


@claim("Running sequences and cached pages survive a new cut of their model", of="fine-tunes")
def test_a_border_splits_handles_and_moves_no_slot() -> None:
    pages = table(6)
    listed = pages.allocate(SPAN, "a")
    cached = pages.allocate(SPAN, "b")
    other = pages.allocate(OTHER, "")
    assert listed is not None
    assert cached is not None
    assert other is not None
    slots = {handle: pages.slots(handle) for handle in (listed, cached)}
    pages.publish(cached, b"hash")
    pages.release([cached], "a")
    pieces = pages.cut({(1, b"l1"), (3, b"other"), (2, b"foreign")})
    assert set(pieces) == {listed, cached}
    for handle, (lower, upper) in pieces.items():
        assert pages.slots(lower) + pages.slots(upper) == slots[handle]
        assert (pages.span(lower).lineage, pages.span(upper).lineage) == (b"l0", b"line")
    lower, upper = SPAN.cut({(1, b"l1")})
    assert [pages.find(b"hash", span) for span in (lower, upper)] == pieces[cached]
    assert pages.find(b"hash", SPAN) is None or SPAN.layer != upper.layer
    pages.check({**dict.fromkeys(pieces[listed], 1), other: 1})
    assert pages.accounts.all_held()["b"] == 3 * CHUNK // 4
    assert list(pages.idle) == pieces[cached]
    assert pages.cut({(1, b"l1")}) == {}


def test_a_marked_page_goes_first_and_a_use_ends_the_mark() -> None:
    pages = table(4)
    handles = [pages.allocate(OTHER, account) for account in "abc"]
    for number, handle in enumerate(handles):
        assert handle is not None
        pages.publish(handle, bytes([number]))
        pages.release([handle], "abc"[number])
    first, second, third = [handle for handle in handles if handle is not None]
    pages.mark(third)
    pages.mark(second)
    pages.mark(third)
    pages.check({})
    assert list(pages.idle) == [third, second, first]
    restored = PageTable.restore(pages.snapshot(), ChunkPool.restore(pages._pool.snapshot()))
    assert restored.snapshot() == pages.snapshot() == pages.fork(pages._pool.fork()).snapshot()
    assert pages.find(bytes([2]), OTHER) == third, "it can be found as ever"
    pages.share(third, "a")
    pages.check({third: 1})
    pages.release([third], "a")
    pages.unmark(second)
    pages.check({})
    assert list(pages.idle) == [first, third, second]
    pages.mark(first)
    pages.evict(first)
    pages.check({})
    assert pages.redundant == set()


def test_with_caps_an_account_gives_up_its_marked_pages_first() -> None:
    pages = PageTable(ChunkPool(4, CHUNK), capped=True)
    pages.add_layout("kv", CHUNK // 4)
    handles = [pages.allocate(SPAN, account) for account in ("a", "a", "b")]
    for number, handle in enumerate(handles):
        assert handle is not None
        pages.publish(handle, bytes([number]))
        pages.release([handle], "aab"[number])
    assert pages.accounts.oldest("a") == handles[0]
    pages.mark(handles[1])  # type: ignore[arg-type]
    assert pages.accounts.oldest("a") == handles[1]
    made = pages.cut({(1, b"l1")})
    pages.check({})
    assert pages.redundant == {*made[handles[1]]}  # type: ignore[index]
    assert list(pages.idle)[:2] == made[handles[1]]  # type: ignore[index]
