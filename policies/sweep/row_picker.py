"""Rows of the plan being made: a place in the batch and memory for each, taken from younger sequences if need be.

The order of rows is decided by ``planner.py`` and ``backfill.py``; this file carries out one choice at a time: start a
sequence, give it pages, add its tokens to the batch. Memory is taken page by page. When there is none, or when an account
is at its cap, a younger sequence is preempted (``preemption.py`` chooses).
"""

from __future__ import annotations

from ..model.runs import Span
from ..plan.sweep_plan import NO_SLOT, SetPages, SetSampling, WriteTokens
from .batch_builder import BatchBuilder
from .columns import Place, Status
from .events import LeaseGranted, Progressed
from .hidden_entries import HiddenEntries
from .microbatch_scheduler import MicrobatchScheduler
from .parts import Parts
from .pinning import Pinning
from .pipeline import Pipeline
from .preemption import choose_victim
from .prefix_catch_up import PrefixCatchUp
from .sequence_queue import Rank
from .sequences import Found, Sequences


class RowPicker:
    """The picker of rows. It keeps nothing between two plans but ``microbatches``, which ``begin_plan`` replaces."""

    def __init__(self, parts: Parts, sequences: Sequences, pipeline: Pipeline, pinning: Pinning) -> None:
        self._parts = parts
        self._sequences = sequences
        self._pipeline = pipeline
        self._pinning = pinning
        self._rows, self.catch_up = parts.rows, PrefixCatchUp(parts, self._complete_page)
        self._entries = HiddenEntries(parts)
        self.microbatches = MicrobatchScheduler(parts)

    def begin_plan(self) -> None:
        """Form the microbatches of the plan being made."""
        self.microbatches = MicrobatchScheduler(self._parts)

    def rank(self, s: int) -> Rank:
        return self._parts.queue.rank(self._rows.key(s), self._rows.tenant[s])

    def delays(self, batch: BatchBuilder, s: int) -> bool:
        """Return whether rows of an account that was given less decode, and so wait for each prompt token of ``s``."""
        if not batch.decoding:
            return False
        mine = self.rank(s)  # higher than before: a start is charged at once, but no account counts as behind itself
        own = mine[0], self._rows.tenant[s]
        return any(rank < mine and (rank[0], account) != own for rank, account in batch.decoding)

    def pick(self, batch: BatchBuilder, s: int, count: int) -> None:
        """Give ``s`` pages for ``count`` more tokens and a place in the batch, or leave it for a later sweep."""
        rows = self._rows
        start = rows.planned[s]
        if self.covered(batch, s, start + count) and self.grow(batch, s, start + count):
            if rows.route[s].entries:
                self._entries.enter(batch, s, start, count)
            batch.add(s, start, count, rows.plan(s, count), rows.place[s] == Place.LOCAL)

    def pick_chunk(self, batch: BatchBuilder, s: int, limit: int = 1 << 30) -> None:
        rows = self._rows
        self.catch_up.jump(s)
        delays = self.delays(batch, s)
        room = min(batch.budget, batch.spare) if delays else batch.budget
        left = rows.known[s] - rows.planned[s] - rows.held[s]  # a token is drawn after the last one
        count = min(left, self._parts.config.chunk_size, room, limit)
        if count <= 0:
            return
        count = self._entries.until_changed(s, self.catch_up.until_found(s, count))
        if delays:
            batch.spare -= count
        self.pick(batch, s, count)

    def leave(self, batch: BatchBuilder, s: int) -> None:
        """Pick a decoding row that goes on elsewhere. A row that waits for memory leaves its place to the others."""
        if self.may_leave(batch, s):
            picked = len(batch.picked)
            self.pick(batch, s, 1)
            if len(batch.picked) > picked:
                self.microbatches.take(s)

    def may_leave(self, batch: BatchBuilder, s: int) -> bool:
        """Return whether there is a place for a decoding row that goes on elsewhere."""
        return self._rows.status[s] == Status.RUNNING and batch.budget > 0 and self.microbatches.room(s)

    # starts ----------------------------------------------------------------------------------------------------------

    def start(self, s: int, found: Found) -> None:
        """Start ``s``: give it a row and list the present pages. Positions present on every span are skipped."""
        parts, rows = self._parts, self._rows
        pages = parts.memory.pages
        outgoing = parts.outgoing
        of = rows.submission[s]
        row = rows.start(s)
        if outgoing.edited:
            outgoing.edit(WriteTokens(row, 0, rows.tokens_of(s)))
            outgoing.edit(SetSampling(row, of.prompt_length, of.sampling))
        if (exit := rows.route[s].exit) is not None:  # room for KV may have been made at the cost of hidden states
            hidden = [pages.find(token_hash, exit.span) for token_hash in rows.hashes[s][: len(found)]]
            found = [[*handles[:-1], there] for handles, there in zip(found, hidden, strict=True)]
        for handles in found:  # pin first: taking a page for another span may evict
            for handle in handles:
                if handle is not None:
                    pages.share(handle, rows.tenant[s])
        kv_spans = rows.route[s].kv_spans
        whole = next((page for page, handles in enumerate(found) if None in handles[:kv_spans]), len(found))
        self._sequences.constrain(s)
        if exit is not None:
            self._take_kv(s, found)
        for page, handles in enumerate(found):
            self._complete_page(s, handles, page < min(whole, parts.leases.cached(s)))
        if not rows.route[s].spans:  # no KV here, so none can be missing
            whole = (rows.known[s] - 1) // rows.page_size
        parts.leases.start(s)
        if len(parts.page_pins):
            self._pinning.end(of.request, of.attempt - 1)
        skipped = min(whole, parts.leases.cached(s)) * rows.page_size
        rows.charge(s, skipped)  # paid by the sequence that computed them
        parts.queue.charge_prompt(rows.key(s), rows.tenant[s], rows.charge(s, rows.length[s]), rows.tier[s])
        if rows.is_guest(s):
            self._start_guest(s, whole)
            return
        rows.skip(s, skipped)
        parts.queue.start(rows.key(s))
        outgoing.count("cached_tokens", skipped)
        self._sequences.announce(s)
        outgoing.emit(Progressed(of.gateway, of.request, of.attempt, skipped, skipped, rows.risen(s)))

    def _start_guest(self, s: int, whole: int) -> None:
        """Take all pages of the lease at once, so that no row of the guest ever waits; then its home may send them.

        The grant waits for the guest's grammar, too.
        """
        parts, rows = self._parts, self._rows
        while rows.route[s].spans and rows.paged[s] < parts.leases.pages(s):
            added = self._add_page(s)
            assert added, "the lease fitted a moment ago"
        if rows.held[s]:
            parts.grammars.owe(s, whole)
            return
        grant = LeaseGranted(parts.config.worker, parts.leases.number(s), whole)
        parts.outgoing.send(parts.leases.home(s), grant)

    def _take_kv(self, s: int, found: Found) -> None:
        """Take the KV that is missing on ``found`` pages, before hidden states may take the room counted for it."""
        rows, memory = self._rows, self._parts.memory
        for handles in found:
            for i, span in enumerate(rows.route[s].kv):
                if handles[i] is None:
                    handles[i] = memory.allocate_page(span, rows.tenant[s])
                    assert handles[i] is not None, "the page fitted a moment ago"

    def _complete_page(self, s: int, handles: list[int | None], skipped: bool) -> None:
        """List a page of which some spans are present; the others get fresh slots.

        Hidden states that are not present are not made for a page that is ``skipped``, and get none.
        """
        rows, memory = self._rows, self._parts.memory
        whole = []
        for span, handle in zip(rows.route[s].spans, handles, strict=True):
            wanted = span.void if skipped and handle is None else span
            taken = handle if handle is not None else memory.allocate_page(wanted, rows.tenant[s])
            if taken is None and span.hidden:
                taken = memory.allocate_page(span.void, rows.tenant[s])
            assert taken is not None, "the page fitted a moment ago"
            whole.append(taken)
        self._list_page(s, whole)

    def list_present(self, row: int) -> int:
        """List the leading pages of a draft row that are present on all spans with KV; return their number."""
        rows, pages = self._rows, self._parts.memory.pages
        for token_hash in rows.hashes_of(row)[: (rows.length[row] - 1) // rows.page_size]:
            handles = [pages.find(token_hash, span) for span in rows.route[row].spans]
            if None in handles[: rows.route[row].kv_spans]:
                break
            for handle in handles:
                if handle is not None:
                    pages.share(handle, rows.tenant[row])
            self._complete_page(row, handles, True)
        return rows.paged[row]

    # memory ----------------------------------------------------------------------------------------------------------

    def covered(self, batch: BatchBuilder, s: int, positions: int) -> bool:
        """Return whether other workers of the route of ``s`` have pages for ``positions``."""
        return self._rows.place[s] == Place.LOCAL or self._pipeline.covers(s, positions, batch.growing)

    def grow(self, batch: BatchBuilder, s: int, positions: int) -> bool:
        """Extend the pages of ``s`` to ``positions``, if need be at the cost of younger sequences; return whether it
        worked.
        """
        rows = self._rows
        if not rows.route[s].spans:
            return True
        need = -(-positions // rows.page_size)
        if need > rows.paged[s] + 1:
            self._add_pages(s, need - rows.paged[s])
        while rows.paged[s] < need:
            if not self._add_page(s):
                memory, spans = self._parts.memory, rows.route[s].kv
                at_cap = not memory.within_cap(rows.tenant[s], memory.page_bytes(spans))
                if not self.make_room(batch, s, at_cap=at_cap):
                    return False
        return True

    def grow_if_free(self, s: int, positions: int) -> int:
        """Extend the pages of ``s`` towards ``positions`` with free memory alone; return the positions that are covered."""
        rows = self._rows
        if not rows.route[s].spans:
            return positions
        while rows.paged[s] * rows.page_size < positions and self._add_page(s):
            pass
        return min(positions, rows.paged[s] * rows.page_size)

    def _add_pages(self, s: int, count: int) -> None:
        """Add ``count`` pages at once, in the simple case; equivalent to adding one after the other."""
        memory, spans = self._parts.memory, self._rows.route[s].spans
        if len(spans) == 1 and not memory.capped:
            handles = memory.pages.allocate_several(spans[0], [self._rows.tenant[s]] * count) or []
            first = self._rows.paged[s]
            self._rows.list_each([s] * len(handles), handles)
            for n, handle in enumerate(handles if self._parts.outgoing.edited else []):
                self._edit_page(s, spans[0], first + n, handle)

    def _add_page(self, s: int) -> bool:
        """Add one page on all local spans, or nothing."""
        taken = self._parts.memory.allocate_pages(self._rows.route[s].spans, self._rows.tenant[s])
        if taken is None:
            return False
        self._list_page(s, taken)
        return True

    def _list_page(self, s: int, handles: list[int]) -> None:
        """List ``handles``, one for each span, as the next page of ``s``."""
        rows = self._rows
        page = rows.paged[s]
        rows.list_page(s, handles)
        if self._parts.outgoing.edited:
            for span, handle in zip(rows.route[s].spans, handles, strict=True):
                self._edit_page(s, span, page, handle)

    def _edit_page(self, s: int, span: Span, page: int, handle: int) -> None:
        slots = self._parts.memory.pages.slots(handle) or [NO_SLOT]
        self._parts.outgoing.edit(SetPages(self._rows.row[s], span.layer, page, slots))

    def _drop_hidden(self, running: list[int]) -> bool:
        """Drop the hidden states that the last of these sequences with some has kept; return False if none has any."""
        rows, pages = self._rows, self._parts.memory.pages
        for s in reversed(running):
            span = rows.route[s].spans[-1] if rows.route[s].exit is not None else None
            kept = rows.pages[s][-1][: rows.paged[s]] if span is not None else []
            dropped = {page: handle for page, handle in enumerate(kept) if pages.slots(handle)}
            if span is None or not dropped:
                continue
            for page in dropped:
                void = pages.allocate(span.void, rows.tenant[s])
                assert void is not None, "a page without layers takes no memory"
                rows.replace_page(s, page, void)
                self._edit_page(s, span, page, void)
            pages.release([*dropped.values()][::-1], rows.tenant[s])
            return True
        return False

    def make_room(self, batch: BatchBuilder, s: int, *, at_cap: bool) -> bool:
        """Preempt one sequence for ``s``; return True if its memory is free now, and False if ``s`` must wait.

        An account at its cap finds room among its own sequences, and the others do not notice.
        """
        parts = self._parts
        rows = self._rows
        account = self._rows.tenant[s]
        running = [*parts.queue.running, *parts.leases.lent()]
        if at_cap:
            batch.capped.add(account)
            batch.squeezed = True
            running = [other for other in running if rows.tenant[other] == account]
        else:
            batch.starved = True
        if (free := self._sequences.draft_rows.give_way(account if at_cap else "")) is not None:
            return free
        if parts.routes.keeps_hidden and self._drop_hidden(running):
            return True
        if rows.leaving or parts.leases.revoked or parts.page_transfers.receiving:
            return False  # memory is being freed
        victim = choose_victim(rows, parts.memory.pages, parts.queue, running, s, set(batch.picked))
        if len(parts.page_pins) and self._pinning.give_way(s if victim is None else victim, account if at_cap else ""):
            return True
        if victim is None:
            return False
        if at_cap:
            parts.memory.hit_cap(account)
        if rows.is_guest(victim):
            self._pipeline.revoke(victim)
            return False
        self._sequences.preempt(victim)
        return rows.status[victim] != Status.LEAVING
