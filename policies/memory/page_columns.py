"""The columns of KV pages by handle, with copies, snapshots and checks. All changes to pages are in ``pages.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ..model.chain import HIDDEN
from ..model.runs import Span
from ..plain import Plain, from_plain, to_plain
from .accounts import PageAccounts
from .cache_news import CacheNews
from .chunks import ChunkPool
from .copy_on_write import CopyOnWriteList
from .idle_pages import IdlePages
from .prefix_index import Key, PrefixIndex
from .slots import SlotAllocator


class PageColumns:
    """All handles of a worker. Columns are indexed by handle; released indices are reused."""

    def __init__(self, pool: ChunkPool, *, capped: bool = False) -> None:
        self._pool = pool
        self._allocators: dict[str, SlotAllocator] = {}  # by arena
        self._spans: list[Span] = []  # every span that a handle ever had
        self._span_numbers: dict[tuple[bytes, int], int] = {}  # (lineage, first layer) -> place in ``_spans``
        self._span: CopyOnWriteList[int] = CopyOnWriteList()  # place in ``_spans``; -1: the handle is unused
        self._slots: CopyOnWriteList[list[int]] = CopyOnWriteList()  # slots of the span's layers; lists never change
        self._references: CopyOnWriteList[int] = CopyOnWriteList()  # number of sequences that list the page
        self._account: CopyOnWriteList[int] = CopyOnWriteList()  # account that pays for it, a number of ``accounts``
        self._others: dict[int, dict[int, int]] = {}  # with caps: handle -> other accounts that list it, with counts
        self._hash: CopyOnWriteList[bytes] = CopyOnWriteList()  # token hash once published; before, b""
        self._unused: list[int] = []
        self._index = PrefixIndex()
        self.idle = IdlePages()  # published pages without references
        self.redundant: set[int] = set()  # idle pages that go early, because another worker has them, too
        self.news: CacheNews | None = None  # notes the changes of cached pages; None, as in forks: they are not noted
        self.accounts = PageAccounts(ordered=capped)
        self.evicted = self.shared = 0  # shared: times a sequence listed a page made by another

    # layouts ---------------------------------------------------------------------------------------------------------

    def add_layout(self, arena: str, slot_bytes: int) -> None:
        """Allow slots of a layout to be taken. A known layout is left as it is."""
        if arena not in self._allocators:
            self._allocators[arena] = SlotAllocator(arena, slot_bytes, self._pool)
            self.idle.add_layout(arena)

    def allocator(self, arena: str) -> SlotAllocator:
        return self._allocators[arena]

    @property
    def free_chunks(self) -> int:
        return self._pool.free

    # what is there ---------------------------------------------------------------------------------------------------

    def span(self, handle: int) -> Span:
        number = self._span[handle]
        assert number >= 0, "a released handle is in use"
        return self._spans[number]

    def slots(self, handle: int) -> list[int]:
        """Return the slots of its layers, in order. Do not change the list."""
        return self._slots[handle]

    def references(self, handle: int) -> int:
        """Return the number of sequences that list it."""
        return self._references[handle]

    @property
    def cached(self) -> int:
        """The number of published pages that no sequence lists."""
        return self.idle.count

    @property
    def chunks(self) -> list[int]:
        """The ids of all chunks that hold KV."""
        return [chunk for allocator in self._allocators.values() for chunk in allocator.chunks]

    @property
    def slots_in_use(self) -> dict[str, int]:
        """The used slots by arena, including those of cached pages."""
        return {arena: allocator.used for arena, allocator in self._allocators.items()}

    @property
    def hidden_bytes(self) -> int:
        """The bytes of pages of hidden states, including cached ones."""
        return sum([one.used * one.slot_bytes for arena, one in self._allocators.items() if arena.startswith(HIDDEN)])

    def page_bytes(self, span: Span) -> int:
        """Return the bytes of one page of a span."""
        return span.layers * self._allocators[span.arena].slot_bytes

    def account(self, handle: int) -> str:
        """Return the account that pays for the page."""
        name = self.accounts.names[self._account[handle]]
        assert name is not None, "a page is of a forgotten account"
        return name

    def use(self, handles: Iterable[int]) -> tuple[int, int]:
        """Return the bytes of these pages, each counted once, and the bytes among them listed by two sequences or more."""
        found = {handle: self.page_bytes(self.span(handle)) for handle in handles}
        return sum(found.values()), sum([n for handle, n in found.items() if self._references[handle] > 1])

    def shared_now(self) -> int:
        """Return the number of pages listed by two sequences or more."""
        return sum(n > 1 for n in self._references)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self, pool: ChunkPool) -> Self:
        copy = type(self)(pool)
        copy._allocators = {arena: allocator.fork(pool) for arena, allocator in self._allocators.items()}
        copy._spans, copy._span_numbers = self._spans.copy(), self._span_numbers.copy()
        copy._span = self._span.fork()
        copy._references = self._references.fork()
        copy._account = self._account.fork()
        copy._slots = self._slots.fork()
        copy._hash = self._hash.fork()
        copy._unused = self._unused.copy()
        copy._index = self._index.fork()
        copy.idle, copy.redundant = self.idle.fork(), self.redundant.copy()
        copy.accounts = self.accounts.fork()
        copy._others = {handle: others.copy() for handle, others in self._others.items()}
        copy.evicted, copy.shared = self.evicted, self.shared
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "layouts": [allocator.snapshot() for allocator in self._allocators.values()],
            "spans": to_plain(self._spans),
            "accounts": self.accounts.names.copy(),
            "unused_accounts": self.accounts.unused.copy(),
            "others": [[handle, [list(pair) for pair in others.items()]] for handle, others in self._others.items()],
            "span": list(self._span),
            "slots": [slots.copy() for slots in self._slots],
            "references": list(self._references),
            "account": list(self._account),
            "hash": list(self._hash),
            "unused": self._unused.copy(),
            "idle": list(self.idle),
            "redundant": sorted(self.redundant),
            "evicted": self.evicted,
            "shared": self.shared,
        }

    @classmethod
    def restore(cls, data: dict[str, Plain], pool: ChunkPool, *, capped: bool = False) -> Self:
        table = cls(pool, capped=capped)
        for layout in data["layouts"]:
            table.add_layout(layout["arena"], layout["slot_bytes"])
            table._allocators[layout["arena"]] = SlotAllocator.restore(layout, pool)
        table._spans = from_plain(list[Span], data["spans"])
        table._span_numbers = {(span.lineage, span.layer): n for n, span in enumerate(table._spans)}
        table._span, table._references = CopyOnWriteList(data["span"]), CopyOnWriteList(data["references"])
        table._account, table._unused = CopyOnWriteList(data["account"]), from_plain(list[int], data["unused"])
        table._slots = CopyOnWriteList(from_plain(list[list[int]], data["slots"]))
        table._hash = CopyOnWriteList(from_plain(list[bytes], data["hash"]))
        for key, handle in table._published().items():
            table._index.put(key, handle)
        table.accounts.restore(data["accounts"], data["unused_accounts"])
        table._others = {handle: {pair[0]: pair[1] for pair in others} for handle, others in data["others"]}
        for handle, number in enumerate(table._span):
            if number >= 0:
                table.accounts.allocate(table._account[handle], table.page_bytes(table._spans[number]))
        table.redundant = set(from_plain(list[int], data["redundant"]))
        for handle in data["idle"]:
            table._rest(handle)
        table.evicted, table.shared = data["evicted"], data["shared"]
        return table

    def _rest(self, handle: int) -> None:
        """Keep a page as cache that has lost its last reader."""
        self._line_up(handle)
        if self.news is not None:
            self.news.rest(handle)

    def _line_up(self, handle: int) -> None:
        """Put a page behind the idle ones of its kind."""
        span = self.span(handle)
        early = self._goes_early(handle)
        self.idle.add(handle, span.arena, len(self._slots[handle]), early=early)
        self.accounts.rest(self._account[handle], handle, self.page_bytes(span), early=early)

    def _goes_early(self, handle: int) -> bool:
        """Return whether an idle page is evicted before all others."""
        return self._account[handle] in self.accounts.offline or handle in self.redundant

    def _published(self) -> dict[Key, int]:
        """Return the index as it follows from the columns."""
        spans, columns = self._spans, zip(self._hash, self._span, strict=True)
        return {(h, spans[n].lineage, spans[n].layer): handle for handle, (h, n) in enumerate(columns) if h}

    def check(self, listed: dict[int, int]) -> None:
        """Raise AssertionError unless every slot is free or in one handle, and counts are right.

        ``listed``: how many sequences list each handle.
        """
        taken: dict[str, list[int]] = {arena: [] for arena in self._allocators}
        idle: dict[str, int] = dict.fromkeys(self._allocators, 0)
        self.idle.check()
        for column in (self._span, self._references, self._account):
            column.check()
        self._slots.check()
        self._hash.check()
        cached = set(self.idle)
        for handle, number in enumerate(self._span):
            if number < 0:
                assert handle not in listed, f"page {handle} is listed and free"
                assert (self._slots[handle], self._hash[handle]) == ([], b""), f"page {handle} is free and not empty"
                continue
            span, references = self._spans[number], self._references[handle]
            assert references == listed.get(handle, 0), f"page {handle} is counted wrongly"
            assert references or handle in cached, f"page {handle} is lost"
            assert len(self._slots[handle]) == span.layers, f"page {handle} lacks slots"
            taken[span.arena] += self._slots[handle]
            if handle in cached:
                assert not references, f"page {handle} is listed and idle"
                assert self._hash[handle], f"page {handle} is idle and not published"
                idle[span.arena] += span.layers
        for arena, slots in taken.items():
            self._allocators[arena].check(slots)
        assert self._index.entries() == self._published(), "the prefix index is wrong"
        assert sorted(self._unused) == [h for h, n in enumerate(self._span) if n < 0], "a handle is lost or unused twice"
        assert idle == self.idle.slots, "slots of idle pages are counted wrongly"
        early = [handle for handle in self.idle if self._goes_early(handle)]
        assert early == self.idle.early(), "an offline or redundant page goes after another one"
        assert self.redundant <= cached, "a page is redundant and in use"
        slots_of = {arena: sum(self.span(h).layers for h in early if self.span(h).arena == arena) for arena in idle}
        assert slots_of == self.idle.early_slots, "slots of early pages are counted wrongly"
        assert self._span_numbers == {(s.lineage, s.layer): n for n, s in enumerate(self._spans)}, "a span is lost"
        self._check_accounts()

    def _check_accounts(self) -> None:
        for handle, others in self._others.items():
            assert 0 < sum(others.values()) < self._references[handle], f"no sequence of its account lists page {handle}"
            assert min(others.values()) > 0, f"an account is kept that does not list page {handle}"
            assert self._account[handle] not in others, f"the payer of page {handle} is counted as another"
        count = len(self.accounts.names)
        held = [0] * count
        idle = [0] * count
        order = [list[int]() for _ in range(count)]
        for owner, number in zip(self._account, self._span, strict=True):
            if number >= 0:
                held[owner] += self.page_bytes(self._spans[number])
        for handle in self.idle:
            idle[self._account[handle]] += self.page_bytes(self.span(handle))
            order[self._account[handle]].append(handle)
        self.accounts.check(held, idle, order)
