"""The paged KV cache (for paged attention): handles of KV pages in columns, and the prefix index over them.

A handle stands for one page of the layers of one span: (token hash, lineage) once published. It has the slots of these
layers, a count of the sequences that list it, and an account. A published handle that no sequence lists stays as cache
until its slots are needed (``eviction.py`` chooses which go first).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ..model.runs import Border, Span
from .cache_news import CacheNews
from .copy_on_write import CopyOnWriteList
from .page_columns import PageColumns
from .prefix_index import Key


class PageTable(PageColumns):
    """The KV pages of one worker (see the module)."""

    # the life of a page ----------------------------------------------------------------------------------------------

    def allocate(self, span: Span, account: str) -> int | None:
        """Return a private handle with fresh slots and one reference; None: no room without eviction."""
        return handles[0] if (handles := self.allocate_several(span, [account])) else None

    def allocate_several(self, span: Span, accounts: Sequence[str]) -> list[int] | None:
        """Do the same for each of these accounts, one after the other; all are taken, or none."""
        layers, handles = span.layers, list[int]()
        slots = self._allocators[span.arena].allocate(layers * len(accounts))
        if slots is None:
            return None
        number, nbytes = self._span_number(span), self.page_bytes(span)
        for i, account in enumerate(accounts):
            owner = self.accounts.number(account)
            self.accounts.allocate(owner, nbytes)
            handles.append(self._place(number, slots[i * layers : (i + 1) * layers], 1, owner))
        return handles

    def _place(self, number: int, slots: list[int], references: int, owner: int) -> int:
        """Return a handle with these columns."""
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

    def note_changes(self) -> None:
        """Note the changes of cached pages from now on (``CacheNews``)."""
        self.news = CacheNews()

    def find(self, token_hash: bytes, span: Span) -> int | None:
        """Return the published handle of this page and span, or None."""
        return self._index.get((token_hash, span.lineage, span.layer))

    def share(self, handle: int, account: str) -> None:
        """Add a reference of a sequence of this account to a published page."""
        if self._references[handle] == 0:
            self._wake(handle)
        self._references[handle] += 1
        self.shared += 1
        if self.accounts.ordered and (number := self.accounts.number(account)) != self._account[handle]:
            others = self._others.setdefault(handle, {})
            others[number] = others.get(number, 0) + 1
            self._pass_on(handle, others)
        elif not self.accounts.ordered and self._account[handle] in self.accounts.offline:
            self._wanted(handle, self.accounts.number(account))

    def _wanted(self, handle: int, number: int) -> None:
        """Pass an offline request's page to an online account that shares it, so that it is not given up early."""
        if number not in self.accounts.offline:
            self.accounts.pass_on(self._account[handle], number, self.page_bytes(self.span(handle)))
            self._account[handle] = number

    def _pass_on(self, handle: int, others: dict[int, int]) -> None:
        """Pass a page on if no sequence of the paying account lists it any more: to an account that does.

        Otherwise an account at its cap would wait for pages that it can neither use nor give up.
        """
        if sum(others.values()) == self._references[handle]:
            heir = next(iter(others))
            del others[heir]
            self.accounts.pass_on(self._account[handle], heir, self.page_bytes(self.span(handle)))
            self._account[handle] = heir
        if not others:
            del self._others[handle]

    def publish(self, handle: int, token_hash: bytes) -> None:
        """Publish a full page, so that others find it. If an equal one is published already, this one stays private."""
        span = self.span(handle)
        key = (token_hash, span.lineage, span.layer)
        if not self._hash[handle] and span.layers and self._index.get(key) is None:
            self._index.put(key, handle)
            self._hash[handle] = token_hash

    def release(self, handles: list[int], account: str) -> None:
        """Remove a reference of a sequence of this account to each page.

        Private pages are freed with their last reference.
        """
        freed: dict[str, list[int]] = {}  # slots by arena
        references = self._references
        capped = bool(self._others)
        last = -1
        nbytes = 0
        into = list[int]()
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
        """Evict an idle page."""
        span = self.span(handle)
        self._wake(handle)
        self.evicted += 1
        self._withdraw(handle, span)
        self._free(handle, span)

    def _withdraw(self, handle: int, span: Span) -> None:
        """Let a published page be found no more."""
        key = self._hash[handle], span.lineage, span.layer
        self._index.remove(key)
        self._hash[handle] = b""
        if self.news is not None:
            self.news.withdraw(key, len(self._span))

    def _wake(self, handle: int) -> None:
        """Let a page be idle no more: it is shared, or about to be freed."""
        self._leave(handle)
        if self.news is not None:
            self.news.wake(handle)

    def _leave(self, handle: int) -> None:
        """Take a page out of the order of idle ones."""
        span = self.span(handle)
        self._unrest(handle, span)
        self.accounts.reactivate(self._account[handle], handle, self.page_bytes(span))

    def _unrest(self, handle: int, span: Span) -> None:
        self.idle.remove(handle, span.arena, len(self._slots[handle]), early=self._goes_early(handle))
        self.redundant.discard(handle)

    # copies elsewhere --------------------------------------------------------------------------------------------

    def find_key(self, key: Key) -> int | None:
        """Return the published handle with a key; None: there is none."""
        return self._index.get(key)

    def key(self, handle: int) -> Key | None:
        """Return the key of a published handle; None: it is private, or unused."""
        number = self._span[handle]
        if number < 0 or not self._hash[handle]:
            return None
        span = self._spans[number]
        return self._hash[handle], span.lineage, span.layer

    def has_changed(self, key: Key) -> bool:
        """Return whether a page has been used since the last report on cached pages."""
        handle = self.find_key(key)
        return handle is not None and self.news is not None and self.news.has_changed(handle)

    def mark(self, handle: int) -> None:
        """Have an idle page go early, because another worker has it, too. It can still be found; a use ends the mark."""
        if handle not in self.redundant:
            self._leave(handle)
            self.redundant.add(handle)
            self._line_up(handle)

    def unmark(self, handle: int) -> None:
        """Have a redundant page go with the others again, as if it had just been used."""
        if handle in self.redundant:
            self._wake(handle)
            self._rest(handle)

    # borders -----------------------------------------------------------------------------------------------------

    def cut(self, borders: Container[Border]) -> dict[int, list[int]]:
        """Split the handles of every span in which one of these borders lies; return handle -> its parts.

        The first part keeps the number. Each has the layers of its piece, all references, and is found under its own
        lineage; nothing is copied, and no slot moves.
        """
        pieces = {n: parts for n, span in enumerate(self._spans) if len(parts := span.cut(borders)) > 1}
        numbers = {n: [self._span_number(part) for part in parts] for n, parts in pieces.items()}
        handles = [handle for handle, number in enumerate(self._span) if number in numbers]
        made = {handle: self._split(handle, numbers[self._span[handle]]) for handle in handles}
        if made:
            self.accounts.forget_idle()
            for handle in self.idle:
                early = self._goes_early(handle)
                self.accounts.rest(self._account[handle], handle, self.page_bytes(self.span(handle)), early=early)
        return made

    def _split(self, handle: int, numbers: list[int]) -> list[int]:
        old = self.span(handle)
        slots = self._slots[handle]
        token_hash = self._hash[handle]
        references, account = self._references[handle], self._account[handle]
        if token_hash:
            self._withdraw(handle, old)
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
                    if handle in self.redundant:
                        self.redundant.add(made[-1])
            if token_hash:
                self.publish(made[-1], token_hash)
                if self.news is not None:
                    self.news.split(handle, made[-1])
        if not references:  # pure cache: a piece is of no use if an equal one is published already
            for piece in made:
                if not self._hash[piece]:
                    self._unrest(piece, self.span(piece))
                    self._free(piece, self.span(piece))
        return made

    def _free(self, handle: int, span: Span) -> None:
        self._allocators[span.arena].free(self._clear(handle, self.page_bytes(span)))

    def _clear(self, handle: int, nbytes: int) -> list[int]:
        """Mark the handle unused; return its slots, which have to be freed."""
        slots = self._slots[handle]
        self.accounts.free(self._account[handle], nbytes)
        self._span[handle], self._slots[handle] = -1, []
        self._unused.append(handle)
        return slots

    def borders(self) -> set[Border]:
        """Return the positions where the spans of all pages begin."""
        spans = [self._spans[number] for number in {*self._span} if number >= 0]
        return {(span.layer, span.lineages[0]) for span in spans if span.layers}

    def forget_spans(self) -> None:
        """Drop spans without pages, once these are most of all spans. The others are renumbered."""
        used = sorted({*self._span} - {-1})
        if len(self._spans) > 2 * len(used):
            places = {-1: -1, **{number: place for place, number in enumerate(used)}}
            self._spans = [self._spans[number] for number in used]
            self._span_numbers = {(span.lineage, span.layer): place for place, span in enumerate(self._spans)}
            self._span = CopyOnWriteList([places[number] for number in self._span])

    def idle_of(self, components: Container[bytes], without: Iterable[Span]) -> list[int]:
        """Return the idle pages whose KV was made by one of these components, without pages of the given spans."""
        kept = {self._span_numbers.get((span.lineage, span.layer), -1) for span in without}
        made = {n for n, s in enumerate(self._spans) if any(id in components for layer in s.components for id in layer)}
        return [handle for handle in self.idle if self._span[handle] in made - kept] if made - kept else []

    def compact(self, chunks: int, limit: int) -> dict[str, dict[int, int]]:
        """Compact slots, so that the pool gets back up to ``chunks``; return the moves of used slots, by arena.

        ``limit``: bytes that may move.
        """
        moves: dict[str, dict[int, int]] = {}
        for arena, slots in self._allocators.items():
            if chunks > 0 and slots.spare and not self._pool.unmapped(arena):
                before = self._pool.free
                inside = [h for h, n in enumerate(self._span) if n >= 0 and self._spans[n].arena == arena]
                moved = slots.vacate(chunks, limit // slots.slot_bytes, [s for h in inside for s in self._slots[h]])
                for handle in inside:
                    self._slots[handle] = [moved.get(slot, slot) for slot in self._slots[handle]]
                chunks, limit = chunks - self._pool.free + before, limit - len(moved) * slots.slot_bytes
                moves[arena] = moved
        return moves

    @property
    def spare(self) -> int:
        """The chunks that could be given back if used slots lay together."""
        return sum(allocator.spare for allocator in self._allocators.values())
