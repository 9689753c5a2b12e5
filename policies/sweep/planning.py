"""One plan: which rows run, with which memory, in which steps.

Order within the token budget: guests whose hidden states have arrived (their memory is leased, their home waits), one token
for each decoding sequence by age, prompt chunks by age, then admissions. Memory is taken page by page; when there is none a
younger sequence is preempted, the one that loses the least work of its own. The oldest is never a victim, so it always ends.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from blockwright.policies.plan.sweep_plan import (
    Arrival,
    Departure,
    FlightRow,
    SetPages,
    SetSampling,
    Step,
    SweepPlan,
    WriteTokens,
)
from blockwright.policies.sweep import announcements as announce
from blockwright.policies.sweep import leases
from blockwright.policies.sweep.events import LeaseGranted, Preempted, Progressed, Send
from blockwright.policies.sweep.rows import Status

if TYPE_CHECKING:
    from blockwright.policies.model.runs import LocalRoute
    from blockwright.policies.sweep.state import SweepState


def build(state: SweepState) -> tuple[SweepPlan, list[int]]:
    """The next plan and the sequence of each of its batch rows; the state already counts on it."""
    return _Builder(state).build()


class _Builder:
    """One plan being made. ``budget`` counts down the tokens that still fit."""

    def __init__(self, state: SweepState) -> None:
        self.state = state
        self.rows = state.rows
        self.size = state.config.page_size
        self.budget = state.config.sweep_tokens
        self.starved = False  # some row lacked memory: nobody is admitted
        self.promised: dict[str, int] | None = None  # slots, by layout, that running prompts will still take
        self.picked: list[tuple[int, int]] = []  # (sequence, tokens) of rows at home
        self.landed: list[tuple[int, list[tuple[int, int, int, bool]]]] = []  # flight, (sequence, start, count, sample)

    def build(self) -> tuple[SweepPlan, list[int]]:
        self._take_flights()
        self._pick_running()
        self._admit()
        return self._lay_out()

    # which rows ------------------------------------------------------------------------------------------------------

    def _take_flights(self) -> None:
        """Flights in order of arrival; at least one, however long, or it would never fit."""
        state = self.state
        while state.flights:
            flight, guests = state.flights[0]
            tokens = sum(row.count for row in flight.rows)
            if self.landed and tokens > self.budget:
                break
            del state.flights[0]
            entries = [(s, r.start, r.count, r.sample) for s, r in zip(guests, flight.rows, strict=True)]
            self.landed.append((flight.number, entries))
            self.budget -= tokens

    def _pick_running(self) -> None:
        """Decoding rows, then prompts, oldest first."""
        rows, state = self.rows, self.state
        known, planned, away, pages = rows.known, rows.planned, rows.away, rows.pages
        prompts = []
        quota = -1  # of rows that go on elsewhere; asked for when there is one
        for order in list(state.running):
            s = order[2]
            missing = known[s] - planned[s]
            if missing <= 0 or away[s]:
                continue
            if missing > 1:
                prompts.append(s)
            elif self.budget > 0 and rows.status[s] is Status.RUNNING:
                if rows.route[s].next_worker is not None:
                    quota = leases.microbatch(state) if quota < 0 else quota
                    if not quota:
                        continue
                    quota -= 1
                if not pages[s] or len(pages[s][-1]) * self.size > planned[s]:
                    self.picked.append((s, 1))  # as _pick does, without the calls: most rows of most sweeps
                    self.budget -= 1
                else:
                    self._pick(s, 1)
        for s in prompts:
            if self.budget <= 0:
                break
            if rows.status[s] is Status.RUNNING:
                self._pick(s, min(known[s] - planned[s], state.config.chunk_size, self.budget))

    def _pick(self, s: int, count: int) -> bool:
        """Give ``s`` pages for ``count`` more tokens and a place in the batch, or leave it for a later sweep."""
        if not self._grow(s, self.rows.planned[s] + count):
            return False
        self.picked.append((s, count))
        self.budget -= count
        return True

    # memory ----------------------------------------------------------------------------------------------------------

    def _grow(self, s: int, positions: int) -> bool:
        """Pages of ``s`` cover ``positions``, at the cost of younger sequences where need be."""
        need = -(-positions // self.size)
        spans = self.rows.route[s].spans
        if not spans:
            return True
        while len(self.rows.pages[s][-1]) < need:
            if self._add_page(s):
                continue
            if not self._make_room(s):
                return False
        return True

    def _add_page(self, s: int) -> bool:
        """One more page on all local spans, or nothing."""
        state, rows = self.state, self.rows
        spans, taken = rows.route[s].spans, list[int]()
        for span in spans:
            handle = state.pages.take(span, rows.submission[s].tenant)
            if handle is None:
                for other in taken:
                    state.pages.release(other)
                return False
            taken.append(handle)
        self._list_pages(s, taken)
        return True

    def _list_pages(self, s: int, handles: list[int]) -> None:
        """``handles``, one for each span, are the next page of ``s``."""
        rows, state = self.rows, self.state
        page = len(rows.pages[s][-1])
        for span, listed, handle in zip(rows.route[s].spans, rows.pages[s], handles, strict=True):
            listed.append(handle)
            state.edits.append(SetPages(rows.row[s], span.layer, page, state.pages.slot_lists[handle]))

    def _make_room(self, s: int) -> bool:
        """Preempt one sequence for ``s``. True when its memory is free now; False: ``s`` must wait."""
        state, rows = self.state, self.rows
        self.starved = True
        if state.leaving:
            return False  # memory is on its way
        oldest = state.running[0][2]
        busy = {picked for picked, _ in self.picked}
        candidates = [o[2] for o in state.running if o[2] not in (s, oldest) and o[2] not in busy]
        victims = [v for v in candidates if state.running[0][2] == s or rows.order(v) > rows.order(s)]
        if not victims:
            return False
        victim = min(victims, key=lambda v: (self._private_work(v), *(-x for x in rows.order(v)[:2])))
        self._preempt(victim)
        return rows.status[victim] is not Status.LEAVING

    def _private_work(self, s: int) -> int:
        """Tokens that would have to be computed again: those in pages that nobody else lists."""
        references, rows = self.state.pages.references, self.rows
        shared = 0
        for handles in zip(*rows.pages[s], strict=True):
            if any(references[handle] == 1 for handle in handles):
                break
            shared += 1
        return rows.computed[s] - min(rows.computed[s], shared * self.size)

    def _preempt(self, s: int) -> None:
        submission = self.rows.submission[s]
        self.state.counters["preemptions"] += 1
        self.state.effects.append(Preempted(submission.gateway, submission.request))
        self.state.leave(s, requeue=True)

    # admissions ------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting sequences in order, until one does not fit."""
        state = self.state
        while state.waiting and state.free_rows and not self.starved and self.budget > 0:
            s = state.waiting[0][2]
            if announce.park(state, s) or leases.ask(state, s):
                del state.waiting[0]
                continue
            found = self._look_up(s)
            if not self._fits(s, found):
                break
            del state.waiting[0]
            self._start(s, found)
            if not self.rows.home[s]:
                self._pick(s, min(self.rows.known[s] - self.rows.planned[s], state.config.chunk_size, self.budget))
                self._promise(s)

    def _look_up(self, s: int) -> list[list[int | None]]:
        """For each page of the prompt that may be skipped, the published handle of each span or None; trimmed at the end."""
        rows, state = self.rows, self.state
        found: list[list[int | None]] = []
        if rows.submission[s].scored:
            return found
        for token_hash in rows.hashes[s][: (rows.known[s] - 1) // self.size]:
            handles = [state.pages.find(token_hash, span) for span in rows.route[s].spans]
            if all(handle is None for handle in handles):
                break
            found.append(handles)
        return found

    def _fits(self, s: int, found: list[list[int | None]]) -> bool:
        """Room for the whole prompt and a token, besides what running prompts will still take. A guest: for all of it."""
        state, rows = self.state, self.rows
        size = self.size
        pages = -(-(rows.submission[s].max_length if rows.home[s] else rows.known[s] + 1) // size)
        if self.promised is None:
            self.promised = {}
            for order in state.running:
                self._promise(order[2])
        need, kept = dict(self.promised), dict[str, int]()
        for i, span in enumerate(rows.route[s].spans):
            present = [handle for handles in found if (handle := handles[i]) is not None]
            cached = sum(1 for handle in present if not state.pages.references[handle])
            need[span.arena] = need.get(span.arena, 0) + (pages - len(present)) * span.layers
            kept[span.arena] = kept.get(span.arena, 0) + cached * span.layers
        return state.pages.make_room(need, kept)

    def _promise(self, s: int) -> None:
        """Count what a running prompt has not taken yet."""
        rows, promised = self.rows, self.promised
        spans = rows.route[s].spans
        if promised is not None and spans and (pages := -(-rows.known[s] // self.size) - len(rows.pages[s][-1])) > 0:
            for span in spans:
                promised[span.arena] = promised.get(span.arena, 0) + pages * span.layers

    def _start(self, s: int, found: list[list[int | None]]) -> None:
        """A row, the pages that are present, and the table edits; positions present on every span are skipped."""
        state, rows = self.state, self.rows
        rows.row[s] = row = state.free_rows.pop()
        rows.status[s] = Status.RUNNING
        submission = rows.submission[s]
        state.edits.append(WriteTokens(row, 0, list(rows.tokens[s])))
        state.edits.append(SetSampling(row, submission.prompt_length, submission.sampling))
        whole = 0
        for handles in found:  # pin first: taking a page for another span may evict
            for handle in handles:
                if handle is not None:
                    state.pages.share(handle)
        for page, handles in enumerate(found):
            if None not in handles and whole == page:
                whole += 1
        for handles in found:
            self._complete_page(s, handles)
        if not rows.route[s].spans:  # no KV here: nothing that could be missing
            whole = (rows.known[s] - 1) // self.size
        if rows.home[s]:
            while rows.pages[s] and len(rows.pages[s][-1]) * self.size < submission.max_length:
                self._take_page(s)
            state.effects.append(Send(rows.home[s], LeaseGranted(state.config.worker, rows.lease[s], whole)))
            return
        skipped = min(whole, rows.host_cached[s]) * self.size
        rows.computed[s] = rows.planned[s] = rows.cached[s] = skipped
        rows.known[s] = len(rows.tokens[s])
        insort(state.running, rows.order(s))
        state.counters["cached_tokens"] += skipped
        announce.announce(state, s)
        head = (submission.gateway, submission.request, submission.attempt)
        state.effects.append(Progressed(*head, skipped, skipped))

    def _complete_page(self, s: int, handles: list[int | None]) -> None:
        """List a page of which some spans are present; the others get fresh slots."""
        rows, state = self.rows, self.state
        whole = []
        for span, handle in zip(rows.route[s].spans, handles, strict=True):
            taken = handle if handle is not None else state.pages.take(span, rows.submission[s].tenant)
            assert taken is not None, "the page fitted a moment ago"
            whole.append(taken)
        self._list_pages(s, whole)

    def _take_page(self, s: int) -> None:
        added = self._add_page(s)
        assert added, "the lease fitted a moment ago"

    # layout ----------------------------------------------------------------------------------------------------------

    def _lay_out(self) -> tuple[SweepPlan, list[int]]:
        """Columns and steps. Rows of one route stand together, so that the rows of most runs are contiguous."""
        state, rows = self.state, self.rows
        plan = SweepPlan(state.number)
        sequences: list[int] = []
        wanted: set[int] = set()  # batch rows whose next token is drawn, here or at the route's end
        for flight, entries in self.landed:
            plan.arrivals.append(Arrival(flight, list(range(len(sequences), len(sequences) + len(entries)))))
            for s, start, count, sample in entries:
                if sample:
                    wanted.add(len(sequences))
                sequences.append(s)
                plan.start.append(start)
                plan.count.append(count)
        self.picked.sort(key=lambda entry: rows.route[entry[0]].route.id)
        for s, count in self.picked:
            plan.start.append(rows.planned[s])
            plan.count.append(count)
            rows.open[s] += 1
            rows.planned[s] += count
            if rows.planned[s] == rows.known[s] and rows.known[s] < rows.submission[s].max_length:
                rows.known[s] += 1
                wanted.add(len(sequences))
            sequences.append(s)
            if rows.route[s].next_worker is not None:
                rows.away[s] = plan.number
                state.airborne[plan.number] = state.airborne.get(plan.number, 0) + 1
        plan.row = [rows.row[s] for s in sequences]
        routes = [rows.route[s] for s in sequences]
        plan.sample = [i for i in sorted(wanted) if routes[i].next_worker is None]
        plan.score = [i for i, s in enumerate(sequences) if routes[i].next_worker is None and self._scores(s, plan.start[i])]
        groups: dict[str, list[int]] = {}
        for i, local in enumerate(routes):
            groups.setdefault(local.route.id, []).append(i)
        _steps(state, plan, [(routes[batch[0]], batch) for batch in groups.values()])
        if self.landed or plan.number in state.airborne:
            _departures(state, plan, sequences, wanted)
        plan.reasons = {"waiting": len(state.waiting), "starved": int(self.starved)}
        return plan, sequences

    def _scores(self, s: int, start: int) -> bool:
        submission = self.rows.submission[s]
        return submission.scored and start + 1 < submission.prompt_length


def repeat(state: SweepState, plan: SweepPlan) -> int:
    """How many sweeps from the open ``plan`` on would look the same: until a row needs a page or ends, all decoding here."""
    if plan.arrivals or plan.departures or plan.score or len(plan.sample) != len(plan.row) or not plan.row:
        return 1
    if any(count != 1 for count in plan.count):
        return 1
    ends = [state.rows.submission[s].max_length - 1 for s in state.planned_sequences[plan.number]]
    size = state.config.page_size
    return max(1, min(min(end - start, size - start % size) for end, start in zip(ends, plan.start, strict=True)))


def _steps(state: SweepState, plan: SweepPlan, groups: Iterable[tuple[LocalRoute, list[int]]]) -> None:
    """One step for each run that a row passes, in order of depth; a head only for rows that are sampled or scored."""
    batches: dict[int, tuple[int, list[int]]] = {}
    sampled = {*plan.sample, *plan.score}
    for local, batch in groups:
        for run in local.runs:
            members = [i for i in batch if i in sampled] if run.head else batch
            if members:
                batches.setdefault(state.runs[run], (run.depth, []))[1].extend(members)
    for number, (_, members) in sorted(batches.items(), key=lambda item: (item[1][0], item[0])):
        plan.steps.append(Step(number, sorted(members)))


def _departures(state: SweepState, plan: SweepPlan, sequences: list[int], wanted: set[int]) -> None:
    """Rows whose route goes on elsewhere, a flight for each route."""
    flights: dict[str, Departure] = {}
    for i, s in enumerate(sequences):
        local = state.rows.route[s]
        if local.next_worker is None:
            continue
        if (flight := flights.get(local.route.id)) is None:
            flight = flights[local.route.id] = Departure(local.next_worker, local.route.home, local.width, [], [])
            plan.departures.append(flight)
        flight.batch.append(i)
        flight.rows.append(FlightRow(state.rows.lease[s], plan.start[i], plan.count[i], i in wanted))
