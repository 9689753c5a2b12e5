"""Handles of KV pages in columns, the prefix index over them, and the order in which cached pages are given up.

A handle stands for one page of the layers of one span: (token hash, lineage) once published. It has the slots of these
layers, a count of the sequences that list it, and an account. A published handle that nobody lists stays as cache until its
slots are needed; least recently used goes first, and of one sequence the tail before the head.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.runs import Span
from blockwright.policies.plan.sweep_plan import MapGroup

Key = tuple[bytes, bytes, int]  # token hash, lineage, first layer


class PageTable:
    """All handles of a worker. Columns are indexed by handle; released indices are used again."""

    def __init__(self) -> None:
        self.slots: dict[str, SlotAllocator] = {}  # by key of the layout
        self.memory: list[MapGroup] = []  # memory edits not yet in a plan
        self.span: list[Span | None] = []
        self.slot_lists: list[list[int]] = []
        self.references: list[int] = []
        self.account: list[str] = []
        self.key: list[Key | None] = []  # set when published
        self._unused: list[int] = []
        self._index: dict[Key, int] = {}
        self._idle: dict[int, None] = {}  # published, unreferenced, least recently released first
        self._idle_slots = dict[str, int]()  # slots of idle handles, by layout
        self.evicted = 0
        self.shared = 0  # times that a sequence listed a page made by another

    def add_layout(self, allocator: SlotAllocator) -> None:
        self.slots[allocator.arena] = allocator
        self._idle_slots[allocator.arena] = 0

    def take(self, span: Span, account: str) -> int | None:
        """A private handle with fresh slots and one reference, evicting cached pages where needed; None: no room."""
        allocator = self.slots[span.arena]
        while (slots := allocator.take(span.layers, self.memory)) is None:
            if not self._idle:
                return None
            self._evict(next(iter(self._idle)))
        if self._unused:
            handle = self._unused.pop()
            self.span[handle], self.slot_lists[handle] = span, slots
            self.references[handle], self.account[handle] = 1, account
            return handle
        self.span.append(span)
        self.slot_lists.append(slots)
        self.references.append(1)
        self.account.append(account)
        self.key.append(None)
        return len(self.span) - 1

    def find(self, token_hash: bytes, span: Span) -> int | None:
        """The published handle of this page and span."""
        return self._index.get((token_hash, span.lineage, span.layer))

    def share(self, handle: int) -> None:
        """One more sequence lists this published page."""
        if self.references[handle] == 0:
            self._leave_idle(handle)
        self.references[handle] += 1
        self.shared += 1

    def publish(self, handle: int, token_hash: bytes) -> None:
        """Let others find a full page. If an equal one is known already, this stays private."""
        span = self.span[handle]
        assert span is not None
        key = (token_hash, span.lineage, span.layer)
        if self.key[handle] is None and key not in self._index:
            self._index[key] = handle
            self.key[handle] = key

    def release(self, handle: int) -> None:
        """One sequence less lists this page. Private pages are freed with their last reference."""
        self.references[handle] -= 1
        if self.references[handle] == 0:
            if self.key[handle] is None:
                self._free(handle)
            else:
                self._idle[handle] = None
                self._idle_slots[self._arena(handle)] += len(self.slot_lists[handle])

    def _arena(self, handle: int) -> str:
        span = self.span[handle]
        assert span is not None, "a released handle is in use"
        return span.arena

    def _leave_idle(self, handle: int) -> None:
        del self._idle[handle]
        self._idle_slots[self._arena(handle)] -= len(self.slot_lists[handle])

    def _evict(self, handle: int) -> None:
        self._leave_idle(handle)
        self.evicted += 1
        self._forget(handle)
        self._free(handle)

    def _forget(self, handle: int) -> None:
        key = self.key[handle]
        if key is not None:
            del self._index[key]
            self.key[handle] = None

    def _free(self, handle: int) -> None:
        self.slots[self._arena(handle)].free(self.slot_lists[handle], self.memory)
        self.span[handle], self.slot_lists[handle] = None, []
        self._unused.append(handle)

    def evict_one(self) -> bool:
        """Give up the page unused for longest; False when nothing is cached."""
        if not self._idle:
            return False
        self._evict(next(iter(self._idle)))
        return True

    def forget_components(self, components: set[bytes]) -> int:
        """Evict the cached pages whose KV one of these components made; returns how many."""
        stale = [h for h in self._idle if (s := self.span[h]) is not None and s.components & components]
        for handle in stale:
            self._evict(handle)
        return len(stale)

    @property
    def cached(self) -> int:
        """Published pages that no sequence lists."""
        return len(self._idle)

    def make_room(self, need: Mapping[str, int], kept: Mapping[str, int]) -> bool:
        """Whether ``need`` slots, by layout, can be taken by and by, cached pages giving way but for ``kept`` slots of them.

        ``take`` evicts pages of the same layout when it comes to it. Where chunks lie in cached pages of other layouts these
        are evicted now, oldest first, if that can be enough.
        """

        def lacking() -> int:
            chunks = 0
            for arena, slots in need.items():
                cached = self._idle_slots[arena] - kept.get(arena, 0)
                chunks += self.slots[arena].lacks(slots - cached)
            return chunks - next(iter(self.slots.values())).pool.free

        if (short := lacking()) <= 0:
            return True
        if short > sum(self.slots[a].may_return(n) for a, n in self._idle_slots.items() if n and a not in need):
            return False
        for handle in [h for h in self._idle if self._arena(h) not in need]:
            self._evict(handle)
            if lacking() <= 0:
                return True
        return False

    def bytes_by_account(self) -> dict[str, int]:
        """Bytes of the slots of each account's pages, cached ones included; whoever first made a page pays for it."""
        total: dict[str, int] = {}
        for span, slots, account in zip(self.span, self.slot_lists, self.account, strict=True):
            if span is not None:
                total[account] = total.get(account, 0) + len(slots) * self.slots[span.arena].slot_bytes
        return total

    def shared_now(self) -> int:
        """Pages that at least two sequences list."""
        return sum(1 for n in self.references if n > 1)

    def fork(self, pool: ChunkPool) -> PageTable:
        copy = PageTable()
        copy.slots = {name: a.fork(pool) for name, a in self.slots.items()}
        copy.memory = list(self.memory)
        copy.span, copy.slot_lists = list(self.span), list(self.slot_lists)
        copy.references, copy.account, copy.key = list(self.references), list(self.account), list(self.key)
        copy._unused, copy._index, copy._idle = list(self._unused), dict(self._index), dict(self._idle)
        copy._idle_slots = dict(self._idle_slots)
        copy.evicted, copy.shared = self.evicted, self.shared
        return copy

    def check(self, listed: dict[int, int]) -> None:
        """``listed``: how many sequences list each handle. Every slot is free or in one handle, every count is right."""
        taken: dict[str, list[int]] = {name: [] for name in self.slots}
        for handle, span in enumerate(self.span):
            if span is None:
                continue
            assert self.references[handle] == listed.get(handle, 0), f"page {handle} is counted wrongly"
            assert self.references[handle] or handle in self._idle, f"page {handle} is lost"
            taken[span.arena] += self.slot_lists[handle]
        for name, slots in taken.items():
            assert len(slots) == len(set(slots)) == self.slots[name].used, f"slots of {name} are lost or owned twice"
