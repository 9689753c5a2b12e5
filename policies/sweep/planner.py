"""Making one plan: the rows that run, and their memory. Continuous batching with chunked prefill.

Memory goes first to sequences for whose memory others may wait (``pipeline.py``). Order within the token budget: guests
whose hidden states have arrived (their memory is leased, their home waits), one token for each decoding sequence by age,
prompt chunks by age, then admissions. Among several accounts, a waiting one that was given less than those whose prompts
run goes before them (``fair_share.py``). While its rows decode, the others' prompts get only a part of the budget. Memory
is taken page by page. When there is none, or when an account is at its cap, a younger sequence is preempted
(``preemption.py`` chooses).
"""

from __future__ import annotations

from ..model.runs import Span
from ..plan.sweep_plan import SetPages, SetSampling, WriteTokens
from .batch_builder import BatchBuilder
from .columns import Place, Status
from .events import LeaseGranted, Progressed, Send
from .fitting import Fitting
from .microbatch_scheduler import LATER, NOW, MicrobatchScheduler
from .parts import Parts
from .pinning import Pinning
from .pipeline import Pipeline
from .preemption import PageCommitments, choose_victim
from .prefix_catch_up import PrefixCatchUp
from .sequence_queue import Rank
from .sequences import Found, Sequences


class Planner:
    """The maker of plans.

    It keeps nothing between two plans, and knows nothing of offline sequences (see ``backfill.py``).
    """

    def __init__(self, parts: Parts, sequences: Sequences, pipeline: Pipeline, holding: Pinning) -> None:
        self._parts, self._sequences, self._pipeline, self._pinning = parts, sequences, pipeline, holding
        self._rows, self._catch_up, self._fitting = parts.rows, PrefixCatchUp(parts, self._list_page), Fitting(parts)
        self._now = 0.0  # time of the plan being made
        self._microbatches = MicrobatchScheduler(parts)  # microbatches of the plan being made

    def pick(self, now: float) -> BatchBuilder:
        """Pick the rows of the next plan; the state already counts on it."""
        self._now = now
        batch = BatchBuilder(self._parts.config.sweep_tokens)
        self.fill(batch)
        self._pipeline.ask_pages(batch.growing)
        return batch

    def fill(self, batch: BatchBuilder) -> None:
        """Fill the batch with all that is not offline."""
        self._take_flights(batch)
        if len(self._parts.holds):
            self._start_held(batch)
        if self._parts.leases.urgent:
            self._serve_urgent(batch)
        self._microbatches = MicrobatchScheduler(self._parts)
        prompts = self._pick_decodes(batch)
        if prompts or (self._parts.queue.waiting and self._rows.free_rows):
            decoding = {self._rows.tenant[s]: s for s in batch.picked}
            batch.decoding = sorted((self._rank(s), account) for account, s in decoding.items())[:2]
        if prompts and self._parts.queue.waiting:
            self._admit(batch, prompts)
        self._pick_prompts(batch, prompts)
        self._admit(batch, [])

    def _take_flights(self, batch: BatchBuilder) -> None:
        """Take flights in order of arrival; at least one, however long, or it would never fit."""
        leases = self._parts.leases
        while (following := leases.next_flight()) is not None:
            flight, guests = following
            tokens = sum(row.count for row in flight.rows)
            if batch.flights and (tokens > batch.budget or not batch.guests.isdisjoint(guests)):
                break  # one chunk of a prompt in a plan: each attends to what the one before has written
            leases.take_flight()
            batch.add_flight(flight, guests, tokens)

    # running sequences

    def _pick_decodes(self, batch: BatchBuilder) -> list[int]:
        """Pick decoding rows, oldest first; return the sequences with prompt tokens left, in their order.

        Most rows of most plans need only a place. They are picked by one loop over columns, which stops where more is to
        be decided. A preemption on the way may remove rows before or behind the one at which the loop stands.
        """
        rows, queue = self._rows, self._parts.queue
        running = queue.running
        prompts: list[int] = []
        later: list[int] = []  # rows that go on elsewhere and are not in the microbatch whose turn it is
        at = 0
        while True:
            before = len(batch.picked)
            end = queue.online
            at = rows.plan_decodes(running, at, end, max(batch.budget, 0), batch.picked, batch.starts, prompts)
            batch.budget -= len(batch.picked) - before
            if at >= end:
                break
            s, start, size = running[at], rows.planned[running[at]], len(running)
            waits = start >= rows.known[s] or start >= rows.limit[s] - 1  # it waits for its last token
            if rows.place[s] == Place.LOCAL:
                paged = not waits and batch.budget > 0 and self._grow(batch, s, start + 1)
                at = _place_after(running, at, s, size) + (not paged)  # with its page, the loop picks it
                continue
            if not waits and not self._parts.leases.is_away(s):
                if (turn := self._microbatches.of(s)) == NOW:
                    self._leave(batch, s)
                elif turn == LATER:
                    later.append(s)
            at = _place_after(running, at, s, size) + 1
        for s in later:
            self._leave(batch, s)
        batch.decodes = len(batch.picked)
        if len({rows.tenant[s] for s in prompts}) > 1:
            prompts.sort(key=self._rank)
        return prompts

    def _leave(self, batch: BatchBuilder, s: int) -> None:
        """Pick a decoding row that goes on elsewhere. A row that waits for memory leaves its place to the others."""
        if self._rows.status[s] == Status.RUNNING and batch.budget > 0 and self._microbatches.room(s):
            picked = len(batch.picked)
            self._pick(batch, s, 1)
            if len(batch.picked) > picked:
                self._microbatches.take(s)

    def _rank(self, s: int) -> Rank:
        return self._parts.queue.rank(self._rows.key(s), self._rows.tenant[s])

    def _pick_prompts(self, batch: BatchBuilder, prompts: list[int]) -> None:
        rows = self._rows
        running = [s for s in prompts if rows.status[s] == Status.RUNNING]  # the others were preempted
        shares = self._microbatches.chunks(running)
        for s in prompts:
            if batch.budget <= 0:
                break
            if rows.status[s] == Status.RUNNING and (rows.place[s] == Place.LOCAL or s in shares):
                self._pick_chunk(batch, s, shares.get(s, 1 << 30))

    def _pick_chunk(self, batch: BatchBuilder, s: int, most: int = 1 << 30) -> None:
        rows = self._rows
        self._catch_up.jump(s)
        delays = self._delays(batch, s)
        room = min(batch.budget, batch.spare) if delays else batch.budget
        count = min(rows.known[s] - rows.planned[s], self._parts.config.chunk_size, room, most)
        if count <= 0:
            return
        count = self._catch_up.until_found(s, count)
        if delays:
            batch.spare -= count
        self._pick(batch, s, count)

    def _delays(self, batch: BatchBuilder, s: int) -> bool:
        """Return whether rows of an account that was given less decode, and so wait for each prompt token of ``s``."""
        if not batch.decoding:
            return False
        mine = self._rank(s)  # higher than before: a start is charged at once, but no account counts as behind itself
        own = mine[0], self._rows.tenant[s]
        return any(rank < mine and (rank[0], account) != own for rank, account in batch.decoding)

    def _pick(self, batch: BatchBuilder, s: int, count: int) -> None:
        """Give ``s`` pages for ``count`` more tokens and a place in the batch, or leave it for a later sweep."""
        rows = self._rows
        start = rows.planned[s]
        if self._covered(batch, s, start + count) and self._grow(batch, s, start + count):
            batch.add(s, start, count, rows.plan(s, count), rows.place[s] == Place.LOCAL)

    # memory ----------------------------------------------------------------------------------------------------------

    def _covered(self, batch: BatchBuilder, s: int, positions: int) -> bool:
        """Return whether other workers of the route of ``s`` have pages for ``positions``."""
        return self._rows.place[s] == Place.LOCAL or self._pipeline.covers(s, positions, batch.growing)

    def _serve_urgent(self, batch: BatchBuilder) -> None:
        """Serve sequences that hold memory elsewhere and need some here, oldest first; a waiting one is not overtaken."""
        rows, leases = self._rows, self._parts.leases
        grown: list[int] = []
        for s in sorted(leases.urgent, key=rows.age):
            if rows.status[s] == Status.LEASING:
                self._start_urgent(batch, s)
            elif rows.status[s] == Status.RUNNING and self._grow(batch, s, leases.wanted(s) * rows.page_size):
                grown.append(s)
            if batch.starved:
                break
        self._pipeline.grant_pages(grown)

    def _start_urgent(self, batch: BatchBuilder, s: int) -> None:
        """Start ``s``, for which all hosts have made room, or all behind this one.

        It takes memory here from younger sequences.
        """
        while True:
            found, commitments = self._sequences.look_up(s), self._fitting.commitments()
            capped = not self._fitting.within_cap(s, found, commitments)
            if self._rows.free_rows and not capped and self._fitting.fits(s, found, commitments, {}):
                self._start(s, found)
                return
            if not self._make_room(batch, s, at_cap=capped):
                return

    def _start_held(self, batch: BatchBuilder) -> None:
        """Start sequences with held pages, oldest first. They do not queue, since others wait for that memory."""
        rows, queue = self._rows, self._parts.queue
        for s in self._pinning.waiting():
            queue.remove(rows.key(s), rows.tenant[s])
            if not self._pipeline.ask(s):
                self._start_urgent(batch, s)
                if rows.status[s] == Status.WAITING:
                    queue.push(rows.key(s), rows.tenant[s])
                    break

    def _grow(self, batch: BatchBuilder, s: int, positions: int) -> bool:
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
                memory, spans = self._parts.memory, rows.route[s].spans
                at_cap = not memory.within_cap(rows.tenant[s], memory.page_bytes(spans))
                if not self._make_room(batch, s, at_cap=at_cap):
                    return False
        return True

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
        slots = self._parts.memory.pages.slots(handle)
        self._parts.outgoing.edit(SetPages(self._rows.row[s], span.layer, page, slots))

    def _make_room(self, batch: BatchBuilder, s: int, *, at_cap: bool) -> bool:
        """Preempt one sequence for ``s``; return True if its memory is free now, and False if ``s`` must wait.

        An account at its cap finds room among its own sequences, and the others do not notice.
        """
        parts, rows, account = self._parts, self._rows, self._rows.tenant[s]
        running = [*parts.queue.running, *parts.leases.lent()]
        if at_cap:
            batch.capped.add(account)
            batch.squeezed = True
            running = [other for other in running if rows.tenant[other] == account]
        else:
            batch.starved = True
        if rows.leaving or parts.leases.revoked or parts.exchange.landing:
            return False  # memory is being freed
        victim = choose_victim(rows, parts.memory.pages, parts.queue, running, s, set(batch.picked))
        if len(parts.holds) and self._pinning.give_way(s if victim is None else victim, account if at_cap else ""):
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

    # admissions ------------------------------------------------------------------------------------------------------

    def _admit(self, batch: BatchBuilder, prompts: list[int]) -> None:
        """Start waiting sequences in order, until one does not fit.

        With ``prompts``, only sequences that go before all of these.

        None overtakes one that does not fit, however small: otherwise a long prompt would wait as long as short ones come.
        One that its account's cap keeps out holds up no other account.
        """
        parts, rows, queue = self._parts, self._rows, self._parts.queue
        commitments: PageCommitments | None = None
        while queue.waiting and rows.free_rows and not batch.starved and batch.budget > 0:
            s = queue.first(batch.capped)
            if (
                s < 0
                or rows.is_offline(s)
                or (prompts and not self._overtakes(s, prompts[0]))
                or (batch.spare <= 0 and self._delays(batch, s))
            ):
                break
            if self._sequences.park(s) or self._pipeline.ask(s):
                queue.remove(rows.key(s), rows.tenant[s])
                continue
            found = self._sequences.look_up(s)
            if commitments is None:
                commitments = self._fitting.commitments()
            if not self._fitting.within_cap(s, found, commitments):
                batch.capped.add(rows.tenant[s])
                continue
            awaited = parts.holds.awaited(rows.age(s)) if len(parts.holds) else {}
            if not self._fitting.fits(s, found, commitments, awaited):
                if self._yields(s, found, commitments, awaited) or self._pinning.give_way(s):
                    continue
                self._pipeline.revoke_overdue(s, self._now)
                break
            queue.remove(rows.key(s), rows.tenant[s])
            self._start(s, found)
            if not rows.is_guest(s):
                self._pick_chunk(batch, s)
                commitments.add(rows, s)

    def _yields(self, s: int, found: Found, commitments: PageCommitments, awaited: dict[str, int]) -> bool:
        """Return whether offline sequences have made room for ``s``."""
        return False

    def _overtakes(self, s: int, running: int) -> bool:
        """Return whether ``s`` starts before the prompt of ``running`` continues: its account was given less."""
        return self._rows.tenant[s] != self._rows.tenant[running] and self._rank(s) < self._rank(running)

    def _start(self, s: int, found: Found) -> None:
        """Start ``s``: give it a row and list the present pages. Positions present on every span are skipped."""
        parts, rows = self._parts, self._rows
        pages, outgoing, of = parts.memory.pages, parts.outgoing, rows.submission[s]
        row = rows.start(s)
        if outgoing.edited:
            outgoing.edit(WriteTokens(row, 0, rows.tokens_of(s)))
            outgoing.edit(SetSampling(row, of.prompt_length, of.sampling))
        for handles in found:  # pin first: taking a page for another span may evict
            for handle in handles:
                if handle is not None:
                    pages.share(handle, rows.tenant[s])
        whole = next((page for page, handles in enumerate(found) if None in handles), len(found))
        for handles in found:
            self._complete_page(s, handles)
        if not rows.route[s].spans:  # no KV here, so none can be missing
            whole = (rows.known[s] - 1) // rows.page_size
        parts.leases.start(s)
        if len(parts.holds):
            self._pinning.end(of.request, of.attempt - 1)
        skipped = min(whole, parts.leases.cached(s)) * rows.page_size
        rows.charge(s, skipped)  # paid by the sequence that computed them
        parts.queue.charge_prompt(rows.key(s), rows.tenant[s], rows.charge(s, rows.length[s]))
        if rows.is_guest(s):
            self._start_guest(s, whole)
            return
        rows.skip(s, skipped)
        parts.queue.start(rows.key(s))
        outgoing.count("cached_tokens", skipped)
        self._sequences.announce(s)
        outgoing.emit(Progressed(of.gateway, of.request, of.attempt, skipped, skipped))

    def _start_guest(self, s: int, whole: int) -> None:
        """Take all pages of the lease at once, so that no row of the guest ever waits; then its home may send them."""
        parts, rows = self._parts, self._rows
        while rows.route[s].spans and rows.paged[s] < parts.leases.pages(s):
            added = self._add_page(s)
            assert added, "the lease fitted a moment ago"
        grant = LeaseGranted(parts.config.worker, parts.leases.number(s), whole)
        parts.outgoing.emit(Send(parts.leases.home(s), grant))

    def _complete_page(self, s: int, handles: list[int | None]) -> None:
        """List a page of which some spans are present; the others get fresh slots."""
        rows, memory = self._rows, self._parts.memory
        whole = []
        for span, handle in zip(rows.route[s].spans, handles, strict=True):
            taken = handle if handle is not None else memory.allocate_page(span, rows.tenant[s])
            assert taken is not None, "the page fitted a moment ago"
            whole.append(taken)
        self._list_page(s, whole)


def _place_after(running: list[int], at: int, s: int, size: int) -> int:
    """Return the place of ``s``, which stood at ``at``. It changes only if a sequence before it was preempted."""
    return at if len(running) == size else running.index(s)
