"""Eviction: which cached KV pages are given up for memory, and when: least recently used first (LRU).

A page that is published and that no sequence lists is *idle*: pure cache. It costs nothing to keep until its memory is
needed, so nothing is evicted ahead of need. The order is that in which pages are released, and a sequence releases its
tail before its head, so that the end of a cached prompt goes first: a head without its tail still serves, a tail without
its head never does.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from ..model.runs import Span
from .chunks import ChunkPool
from .pages import PageTable


def allocate_page(pages: PageTable, span: Span, account: str) -> int | None:
    """Return a private page of ``span``, at the cost of cached ones; None: no room even then.

    The oldest page goes first whatever its layout: chunks that it frees serve any layout, and an order by layout would
    keep old pages of one model alive at the cost of fresh ones of another.
    """
    while (handle := pages.allocate(span, account)) is None:
        if not evict_oldest(pages):
            return None
    return handle


def evict_oldest(pages: PageTable) -> bool:
    """Evict the least recently used page; return False if nothing is cached."""
    for handle in pages.idle:
        pages.evict(handle)
        return True
    return False


def make_free(pages: PageTable, pool: ChunkPool, need: int) -> bool:
    """Evict the oldest pages until ``pool``, the pool of ``pages``, has ``need`` free chunks; return whether it worked."""
    while pool.free < need:
        if not evict_oldest(pages):
            return False
    return True


def make_compact(pages: PageTable, pool: ChunkPool, need: int, limit: int) -> dict[str, dict[int, int]] | None:
    """Do the same with up to ``limit`` bytes of slots compacted; return the moves by arena, or None if it fails."""
    while pool.free + pages.spare < need:
        if not evict_oldest(pages):
            return None
    moves = pages.compact(need - pool.free, limit)
    return moves if pool.free >= need else None


def evict_components(pages: PageTable, components: Container[bytes], named: Collection[Span]) -> None:
    """Evict cached pages whose KV was made by these components, which are gone.

    Pages of ``named`` spans stay, since a worker that comes to compute them again finds them.
    """
    for handle in pages.idle_of(components, named):
        pages.evict(handle)


def shortage(pages: PageTable, need: Mapping[str, int], kept: Mapping[str, int], chunks: int = 0) -> int:
    """Return the chunks that are lacking for ``need`` slots, by arena, to be taken one by one; 0 or less: they fit.

    ``chunks``: that are needed besides.

    Idle pages of the same arenas count as free, because ``allocate_page`` will evict them. ``kept`` of their slots do not
    count: pages that the very sequence in question will list are idle now and will not be.
    """
    for arena, slots in need.items():
        chunks += pages.allocator(arena).lacks(slots - pages.idle.slots[arena] + kept.get(arena, 0))
    return chunks - pages.free_chunks


def make_room(
    pages: PageTable,
    need: Mapping[str, int],
    kept: Mapping[str, int],
    chunks: int = 0,
    listed: Container[int] | None = None,
) -> bool:
    """Return whether ``need`` slots, by arena, and ``chunks`` can be taken one by one, with cached pages evicted.

    ``kept`` slots of idle pages do not count. Nothing is evicted if the answer is no. If chunks lie in idle pages of
    *other* arenas, these are evicted now, oldest first, because ``shortage`` counts only chunks that the pool has. How
    many come back is known only afterwards, since a group of slots returns its chunks when its last slot is free.

    With slots of several arenas in ``need``, one of them may have more idle pages than it needs. These go last, but for the
    ``listed`` ones, which the sequence will use; None: all stay.
    """
    lacking = shortage(pages, need, kept, chunks)
    if lacking <= 0:
        return True
    beside = len(need) > 1 and listed is not None
    spare = {arena: _spare(pages, arena, need, kept, beside) for arena, slots in pages.idle.slots.items() if slots}
    if lacking > sum(pages.allocator(arena).may_return(slots) for arena, slots in spare.items()):
        return False
    needless = [h for h in pages.idle if pages.span(h).arena not in need]
    surplus = [h for h in pages.idle if pages.span(h).arena in need and h not in (listed or ())] if beside else []
    for handle in needless + surplus:
        arena = pages.span(handle).arena
        if arena in need and _spare(pages, arena, need, kept, beside) < pages.span(handle).layers:
            continue
        pages.evict(handle)
        if shortage(pages, need, kept, chunks) <= 0:
            return True
    return False


def _spare(pages: PageTable, arena: str, need: Mapping[str, int], kept: Mapping[str, int], beside: bool) -> int:
    """Return the idle slots of an arena that a need can do without; of arenas that it needs only if ``beside``."""
    idle = pages.idle.slots[arena]
    if arena not in need:
        return idle
    if not beside:
        return 0  # all of them count already
    return max(0, min(idle, idle + pages.allocator(arena).unused - need[arena] - kept.get(arena, 0)))
