"""Handles of KV pages in columns, and the prefix index over them.

A handle stands for one page of the layers of one span: (token hash, lineage) once published. It has the slots of these
layers, a count of the sequences that list it, and an account. A published handle that nobody lists stays as cache until its
slots are needed (``eviction.py`` says which go first).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from blockwright.policies.memory.accounts import PageAccounts
from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.idle_pages import IdlePages
from blockwright.policies.memory.prefix_index import Key, PrefixIndex
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.runs import Border, Span
from blockwright.policies.plain import Plain, from_plain, to_plain


class PageTable:
    """All handles of a worker. Columns are indexed by handle; released indices are used again."""

    def __init__(self, pool: ChunkPool, *, capped: bool = False) -> None:
        self._pool = pool
        self._allocators: dict[str, SlotAllocator] = {}  # by arena
        self._spans: list[Span] = []  # every span that a handle was ever of
        self._span_numbers: dict[tuple[bytes, int], int] = {}  # (lineage, first layer) -> place in ``_spans``
        self._span: list[int] = []  # place in ``_spans``; -1: the handle is unused
        self._slots: list[list[int]] = []  # of the span's layers, in order; a list is never changed
        self._references: list[int] = []  # sequences that list the page
        self._account: list[int] = []  # who pays for it, number in ``accounts``
        self._others: dict[int, dict[int, int]] = {}  # with caps: handle -> other accounts that list it, how often
        self._hash: list[bytes] = []  # of its tokens once published; before, b""
        self._unused: list[int] = []
        self._index = PrefixIndex()
        self.idle = IdlePages()  # published, without references
        self.accounts = PageAccounts(ordered=capped)
        self.evicted = self.shared = 0  # shared: times that a sequence listed a page made by another

    # layouts ---------------------------------------------------------------------------------------------------------

    def add_layout(self, arena: str, slot_bytes: int) -> None:
        """Slots of a layout can be taken from now on. One that is known already is left as it is."""
        if arena not in self._allocators:
            self._allocators[arena] = SlotAllocator(arena, slot_bytes, self._pool)
            self.idle.add_layout(arena)

    def allocator(self, arena: str) -> SlotAllocator:
        return self._allocators[arena]

    @property
    def free_chunks(self) -> int:
        return self._pool.free

    # the life of a page ----------------------------------------------------------------------------------------------

    def take(self, span: Span, account: str) -> int | None:
        """A private handle with fresh slots and one reference; None: no room without eviction."""
        return handles[0] if (handles := self.take_several(span, [account])) else None

    def take_several(self, span: Span, accounts: Sequence[str]) -> list[int] | None:
        """The same, one after the other, for each of these accounts; all of them, or none is taken."""
        layers, handles = span.layers, list[int]()
        slots = self._allocators[span.arena].take(layers * len(accounts))
        if slots is None:
            return None
        number, nbytes = self._span_number(span), self.page_bytes(span)
        for i, account in enumerate(accounts):
            owner = self.accounts.number(account)
            self.accounts.take(owner, nbytes)
            handles.append(self._place(number, slots[i * layers : (i + 1) * layers], 1, owner))
        return handles

    def _place(self, number: int, slots: list[int], references: int, owner: int) -> int:
        """A handle with these columns."""
        if self._unused:
            handle = self._unused.pop()
            self._span[handle], self._slots[handle] = number, slots
            self._references[handle], self._account[handle] = references, owner
            return handle
        self._span.append(number)
        self._slots.append(slots)
        self._references.append(references)
        self._account.append(owner)
        self._hash.append(b"")
        return len(self._span) - 1

    def _span_number(self, span: Span) -> int:
        key = (span.lineage, span.layer)
        number = self._span_numbers.get(key)
        if number is None:
            number = self._span_numbers[key] = len(self._spans)
            self._spans.append(span)
        return number

    def find(self, token_hash: bytes, span: Span) -> int | None:
        """The published handle of this page and span."""
        return self._index.get((token_hash, span.lineage, span.layer))

    def share(self, handle: int, account: str) -> None:
        """One more sequence, of this account, lists this published page."""
        if self._references[handle] == 0:
            self._wake(handle)
        self._references[handle] += 1
        self.shared += 1
        if self.accounts.ordered and (number := self.accounts.number(account)) != self._account[handle]:
            others = self._others.setdefault(handle, {})
            others[number] = others.get(number, 0) + 1
            self._pass_on(handle, others)

    def _pass_on(self, handle: int, others: dict[int, int]) -> None:
        """A page that nobody lists any more of the account that pays for it becomes that of one who does: else whoever is at
        the cap waits for pages that it can neither use nor give up."""
        if sum(others.values()) == self._references[handle]:
            heir = next(iter(others))
            del others[heir]
            self.accounts.pass_on(self._account[handle], heir, self.page_bytes(self.span(handle)))
            self._account[handle] = heir
        if not others:
            del self._others[handle]

    def publish(self, handle: int, token_hash: bytes) -> None:
        """Let others find a full page. If an equal one is known already, this stays private."""
        span = self.span(handle)
        key = (token_hash, span.lineage, span.layer)
        if not self._hash[handle] and self._index.get(key) is None:
            self._index.put(key, handle)
            self._hash[handle] = token_hash

    def release(self, handles: list[int], account: str) -> None:
        """One sequence less, of this account, lists these pages. Private ones are freed with their last reference."""
        freed: dict[str, list[int]] = {}  # slots by arena
        references, capped, last, nbytes, into = self._references, bool(self._others), -1, 0, list[int]()
        for handle in handles:
            references[handle] = left = references[handle] - 1
            if capped and (others := self._others.get(handle)) is not None:
                number = self.accounts.number(account)
                if number != self._account[handle]:
                    others[number] -= 1
                    if not others[number]:
                        del others[number]
                self._pass_on(handle, others)
            if not left and self._hash[handle]:
                self._rest(handle)
            elif not left:
                if (number := self._span[handle]) != last:
                    span, last = self.span(handle), number
                    nbytes, into = self.page_bytes(span), freed.setdefault(span.arena, [])
                into += self._clear(handle, nbytes)
        for arena, slots in freed.items():
            self._allocators[arena].free(slots)

    def evict(self, handle: int) -> None:
        """Give up an idle page."""
        span = self.span(handle)
        self._wake(handle)
        self.evicted += 1
        self._index.remove((self._hash[handle], span.lineage, span.layer))
        self._hash[handle] = b""
        self._free(handle, span)

    def _rest(self, handle: int) -> None:
        span = self.span(handle)
        self.idle.add(handle, span.arena, len(self._slots[handle]))
        self.accounts.rest(self._account[handle], handle, self.page_bytes(span))

    def _wake(self, handle: int) -> None:
        span = self.span(handle)
        self.idle.remove(handle, span.arena, len(self._slots[handle]))
        self.accounts.wake(self._account[handle], handle, self.page_bytes(span))

    # borders -----------------------------------------------------------------------------------------------------

    def cut(self, borders: Container[Border]) -> dict[int, list[int]]:
        """Split the handles of every span in which one of these borders lies: handle -> those that it is now.

        The first keeps the number. Each has the layers of its piece, all references, and is found under its own lineage;
        nothing is copied, and no slot moves.
        """
        pieces = {n: parts for n, span in enumerate(self._spans) if len(parts := span.cut(borders)) > 1}
        numbers = {n: [self._span_number(part) for part in parts] for n, parts in pieces.items()}
        handles = [handle for handle, number in enumerate(self._span) if number in numbers]
        made = {handle: self._split(handle, numbers[self._span[handle]]) for handle in handles}
        if made:
            self.accounts.forget_idle()
            for handle in self.idle:
                self.accounts.rest(self._account[handle], handle, self.page_bytes(self.span(handle)))
        return made

    def _split(self, handle: int, numbers: list[int]) -> list[int]:
        old, slots, token_hash = self.span(handle), self._slots[handle], self._hash[handle]
        references, account = self._references[handle], self._account[handle]
        if token_hash:
            self._index.remove((token_hash, old.lineage, old.layer))
            self._hash[handle] = b""
        made, at = [handle], 0
        for number in numbers:
            span = self._spans[number]
            part, at = slots[at : at + span.layers], at + span.layers
            if at == span.layers:
                self._span[handle], self._slots[handle] = number, part
            else:
                made.append(self._place(number, part, references, account))
                if (others := self._others.get(handle)) is not None:
                    self._others[made[-1]] = others.copy()
                if not references:
                    self.idle.insert(made[-1], after=made[-2])
            if token_hash:
                self.publish(made[-1], token_hash)
        if not references:  # pure cache: what another one is found under already is of no use
            for piece in made:
                if not self._hash[piece]:
                    self.idle.remove(piece, self.span(piece).arena, len(self._slots[piece]))
                    self._free(piece, self.span(piece))
        return made

    def _free(self, handle: int, span: Span) -> None:
        self._allocators[span.arena].free(self._clear(handle, self.page_bytes(span)))

    def _clear(self, handle: int, nbytes: int) -> list[int]:
        """The handle is unused; its slots, which have to be freed."""
        slots = self._slots[handle]
        self.accounts.free(self._account[handle], nbytes)
        self._span[handle], self._slots[handle] = -1, []
        self._unused.append(handle)
        return slots

    def borders(self) -> set[Border]:
        """Where the spans of all pages begin."""
        spans = [self._spans[number] for number in {*self._span} if number >= 0]
        return {(span.layer, span.lineages[0]) for span in spans}

    def forget_spans(self) -> None:
        """Of which there are no pages any more, once these are most of them. The others are numbered anew."""
        used = sorted({*self._span} - {-1})
        if len(self._spans) > 2 * len(used):
            places = {-1: -1, **{number: place for place, number in enumerate(used)}}
            self._spans = [self._spans[number] for number in used]
            self._span_numbers = {(span.lineage, span.layer): place for place, span in enumerate(self._spans)}
            self._span = [places[number] for number in self._span]

    def idle_of(self, components: Container[bytes], without: Iterable[Span]) -> list[int]:
        """Idle pages whose KV one of these made, of other spans than these."""
        kept = {self._span_numbers.get((span.lineage, span.layer), -1) for span in without}
        made = {n for n, s in enumerate(self._spans) if any(id in components for layer in s.components for id in layer)}
        return [handle for handle in self.idle if self._span[handle] in made - kept] if made - kept else []

    # what is there ---------------------------------------------------------------------------------------------------

    def span(self, handle: int) -> Span:
        number = self._span[handle]
        assert number >= 0, "a released handle is in use"
        return self._spans[number]

    def slots(self, handle: int) -> list[int]:
        """Of its layers, in order; not to be changed."""
        return self._slots[handle]

    def references(self, handle: int) -> int:
        """Sequences that list it."""
        return self._references[handle]

    @property
    def cached(self) -> int:
        """Published pages that no sequence lists."""
        return self.idle.count

    @property
    def chunks(self) -> list[int]:
        """Ids of all chunks that hold KV."""
        return [chunk for allocator in self._allocators.values() for chunk in allocator.chunks]

    @property
    def slots_in_use(self) -> dict[str, int]:
        """By arena, those of cached pages included."""
        return {arena: allocator.used for arena, allocator in self._allocators.items()}

    def page_bytes(self, span: Span) -> int:
        """Of one page of a span."""
        return span.layers * self._allocators[span.arena].slot_bytes

    def account(self, handle: int) -> str:
        """Who pays for the page."""
        name = self.accounts.names[self._account[handle]]
        assert name is not None, "a page is of a forgotten account"
        return name

    def use(self, handles: Iterable[int]) -> tuple[int, int]:
        """Bytes of the slots of these pages, each once, and of those among them that at least two sequences list."""
        found = {handle: self.page_bytes(self.span(handle)) for handle in handles}
        return sum(found.values()), sum([n for handle, n in found.items() if self._references[handle] > 1])

    def shared_now(self) -> int:
        """Pages that at least two sequences list."""
        return sum(n > 1 for n in self._references)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self, pool: ChunkPool) -> PageTable:
        copy = PageTable(pool)
        copy._allocators = {arena: allocator.fork(pool) for arena, allocator in self._allocators.items()}
        copy._spans, copy._span_numbers = self._spans.copy(), self._span_numbers.copy()
        copy._span, copy._references, copy._account = self._span.copy(), self._references.copy(), self._account.copy()
        copy._slots, copy._hash, copy._unused = self._slots.copy(), self._hash.copy(), self._unused.copy()
        copy._index, copy.idle, copy.accounts = self._index.fork(), self.idle.fork(), self.accounts.fork()
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
            "span": self._span.copy(),
            "slots": [slots.copy() for slots in self._slots],
            "references": self._references.copy(),
            "account": self._account.copy(),
            "hash": self._hash.copy(),
            "unused": self._unused.copy(),
            "idle": list(self.idle),
            "evicted": self.evicted,
            "shared": self.shared,
        }

    @classmethod
    def restore(cls, data: dict[str, Plain], pool: ChunkPool, *, capped: bool = False) -> PageTable:
        table = cls(pool, capped=capped)
        for layout in data["layouts"]:
            table.add_layout(layout["arena"], layout["slot_bytes"])
            table._allocators[layout["arena"]] = SlotAllocator.restore(layout, pool)
        table._spans = from_plain(list[Span], data["spans"])
        table._span_numbers = {(span.lineage, span.layer): n for n, span in enumerate(table._spans)}
        table._span, table._references = list(data["span"]), list(data["references"])
        table._account, table._slots = list(data["account"]), from_plain(list[list[int]], data["slots"])
        table._hash, table._unused = from_plain(list[bytes], data["hash"]), from_plain(list[int], data["unused"])
        for key, handle in table._published().items():
            table._index.put(key, handle)
        table.accounts.restore(data["accounts"], data["unused_accounts"])
        table._others = {handle: {pair[0]: pair[1] for pair in others} for handle, others in data["others"]}
        for handle, number in enumerate(table._span):
            if number >= 0:
                table.accounts.take(table._account[handle], table.page_bytes(table._spans[number]))
        for handle in data["idle"]:
            table._rest(handle)
        table.evicted, table.shared = data["evicted"], data["shared"]
        return table

    def _published(self) -> dict[Key, int]:
        """The index, as it follows from the columns."""
        spans, columns = self._spans, zip(self._hash, self._span, strict=True)
        return {(h, spans[n].lineage, spans[n].layer): handle for handle, (h, n) in enumerate(columns) if h}

    def check(self, listed: dict[int, int]) -> None:
        """``listed``: how many sequences list each handle. Every slot is free or in one handle, every count is right."""
        taken: dict[str, list[int]] = {arena: [] for arena in self._allocators}
        idle: dict[str, int] = dict.fromkeys(self._allocators, 0)
        self.idle.check()
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
        assert self._span_numbers == {(s.lineage, s.layer): n for n, s in enumerate(self._spans)}, "a span is lost"
        self._check_accounts()

    def _check_accounts(self) -> None:
        for handle, others in self._others.items():
            assert 0 < sum(others.values()) < self._references[handle], f"nobody of its account lists page {handle}"
            assert min(others.values()) > 0, f"an account is kept that does not list page {handle}"
            assert self._account[handle] not in others, f"whoever pays for page {handle} is counted as another"
        count = len(self.accounts.names)
        held, idle, order = [0] * count, [0] * count, [list[int]() for _ in range(count)]
        for owner, number in zip(self._account, self._span, strict=True):
            if number >= 0:
                held[owner] += self.page_bytes(self._spans[number])
        for handle in self.idle:
            idle[self._account[handle]] += self.page_bytes(self.span(handle))
            order[self._account[handle]].append(handle)
        self.accounts.check(held, idle, order)
