"""Lazy replay: the same timeline as ``replay.py`` computes, at a cost that follows changes, not the number of sequences.

A decoding row is not touched while it decodes. Of all decoding rows together only their number is known, the sum of their
positions, and how many cross a page border in which sweep. Only starts, chunks of prompts and ends are simulated. It
covers what most workers do most of the time (``plain_worker.py``), as long as memory lasts and no request waits for pages
that another one is about to make. Everything else is ``NotPlain``, and the machine itself is simulated. A test shows that
both agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop

from ..requests.admission import admit
from ..sweep.columns import Status
from ..sweep.config import OPEN_PLANS
from ..sweep.events import Submission
from ..sweep.state import SweepState
from .lazy_worker import LazyPlan, LazyRow, LazyWorker
from .plain_worker import NotPlain, plain_route
from .route_cost import BatchSums, RouteCost
from .timeline import Timeline, TimelineEntry


class LazyReplay(LazyWorker):
    """A lazy replay (see the module), with the interface of ``MachineReplay`` of one worker.

    May raise NotPlain at any time.
    """

    def __init__(self, present: TimelineEntry, submissions: Iterable[Submission], now: float) -> None:
        state, arrivals = present.state, list(submissions)
        parts = state.parts
        self._began = self._now = now
        self.course, self._present = Timeline(), present
        self._local = plain_route(parts, arrivals)
        self._price = RouteCost(self._local, present.coefficients)
        super().__init__(parts, self._local, [(plan.number, now + left) for plan, left in present.open], state.number)
        coming = [self._sequence(of, of.tokens, of.page_hashes, (of.priority, of.arrival, 1 << 40)) for of in arrivals]
        self._take_over(state, present)
        self._fill()
        for of, row in zip(arrivals, coming, strict=True):  # one by one, as they arrive
            self._arrive(of, row)
            self._fill()

    # what is there ---------------------------------------------------------------------------------------------------

    def _sequence(self, of: Submission, tokens: list[int], hashes: list[bytes], key: tuple[int, float, int]) -> LazyRow:
        """Return a waiting sequence, with the pages that it will find."""
        pages, known = self._parts.memory.pages, len(tokens)
        total = self._present.total(of, known)
        self._ties += 1
        row = LazyRow(of.request, key, of.max_length, total, 0, known, name=self._ties)
        if self._parts.config.prefix_cache and self._width:
            (span,) = self._local.spans
            for token_hash in hashes[: (known - 1) // self._size]:
                if (handle := pages.find(token_hash, span)) is None:
                    maker = self._parts.pending_pages.maker((token_hash, span.lineage))
                    if maker is not None or token_hash in self._making:
                        raise NotPlain("a request waits for a page that another one makes")
                    self._making.add(token_hash)
                    break
                self._references.setdefault(handle, 0)
                row.found.append(handle)
        return row

    def _take_over(self, state: SweepState, present: TimelineEntry) -> None:
        rows, pages = state.parts.rows, state.parts.memory.pages
        last = {s: plan.number for plan, _ in present.open for s in state.batch(plan.number)}
        if len(present.open) != state.open_plans:
            raise NotPlain("a plan is missing")
        live = rows.live()
        for s in live:
            if rows.status[s] == Status.WAITING:
                row = self._sequence(rows.submission[s], rows.tokens_of(s), rows.hashes_of(s), rows.key(s))
                self._waiting.append(row)
        self._waiting.sort(reverse=True)
        for s in live:
            if rows.status[s] == Status.WAITING:
                continue
            of, length = rows.submission[s], rows.length[s]
            total = present.total(of, length)
            row = LazyRow(of.request, rows.key(s), of.max_length, total, rows.planned[s], rows.known[s], rows.paged[s])
            for handle in rows.pages[s][0][: rows.paged[s]] if self._width else []:
                if pages.references(handle) == 1 and handle not in self._references:
                    break  # shared pages come first
                self._references[handle] = self._references.get(handle, 0) + 1
                row.found.append(handle)
            self._ties += 1
            row.name, row.last, row.computed = self._ties, last.get(s, 0), rows.computed[s]
            row.chunk = row.planned - row.computed if rows.open[s] < OPEN_PLANS else 1
            early, end = row.total < row.limit, min(row.total, row.limit) - 2 - row.planned + self._number
            row.running = rows.status[s] == Status.RUNNING
            if not row.running:
                row.requeue, row.leaving, row.known = bool(rows.requeue[s]), True, rows.known[s]
                row.computed = min(row.computed, rows.hashed[s] * self._size)
                self._leaving += 1
                if row.requeue and (row.known == row.limit or (early and row.total <= row.known)):
                    raise NotPlain("a request that was preempted ends")
                self._push(self._leaves, row.last, row)
            elif row.planned == row.limit - 1 and row.known == row.limit:  # it waits for its last token
                self._finals.add(row)
                self._push(self._ends, row.last, row)
                self._push(self._leaves, row.last, row)
            elif row.known - row.planned > 1:
                self._prompts.append(row)
            elif row.last == self._number - 1 or end >= self._number:
                row.missed = 0 if row.last == self._number - 1 else self._number - 1
                self._decode(row, self._number)
            else:  # it was skipped, and the token that it waits for will end it
                self._finals.add(row)
                self._push(self._ends, row.last, row)
                self._push(self._leaves, row.last, row)
        self._prompts.sort()

    def _arrive(self, of: Submission, row: LazyRow) -> None:
        memory = self._parts.memory
        room = memory.pages_of(self._local.spans, of.tenant) * self._size if self._width else 1 << 62
        if admit(of.max_length, min(room, self._local.max_length)):
            self.course.returned.add(of.request)
            return
        self._ties += 1
        row.key = (of.priority, of.arrival, (1 << 40) + self._ties)
        self._waiting.append(row)
        self._waiting.sort(reverse=True)
        self._untried = True

    # until -----------------------------------------------------------------------------------------------------------

    def play(self, request: str, horizon: int) -> None:
        """Simulate, see ``MachineReplay``."""
        course = self.course
        while request not in course.ends and request not in course.returned and course.sweeps[-1] < horizon:
            if not self._step():
                return

    @property
    def present(self) -> int:
        """Return how many sequences run and wait, among them those whose last token is being computed."""
        return len(self._running()) + len(self._waiting)

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """End one plan, or all until something happens; return False if nothing is left to do."""
        if not self._open:
            return False
        ended = self._jump() or self._commit()
        self.course.sweeps.append(self.course.sweeps[-1] + ended)
        self.course.times.append(self._now - self._began)
        if self._now >= self._parts.rows.next_deadline:
            raise NotPlain("a request expires")
        self._fill()
        return True

    def _commit(self) -> int:
        plan = self._open.popleft()
        self._now, at = plan.end, plan.end - self._began
        for row in plan.firsts:
            self.course.first_tokens.setdefault(row.request, at)
        while self._top(self._ends) <= plan.number:
            row = heappop(self._ends)[3]
            self.course.ends[row.request] = at
            if not row.leaving:
                row.computed = min(row.total, row.limit) - 1
                row.leaving, row.running = True, False
                self._leaving += 1
        while self._top(self._leaves) <= plan.number:
            self._release(heappop(self._leaves)[3])
        return 1

    def _jump(self) -> int:
        """End all plans before the next happening and make the two after them; return their number, 0 if too few.

        No waiting sequence could start with the last plan, and memory only shrinks until a sequence leaves.
        """
        if (
            self._untried
            or self._late
            or len(self._open) < OPEN_PLANS
            or self._prompts
            or not self._decoding
            or self._open[0].firsts
            or self._open[1].firsts
        ):
            return 0
        first = self._open[0].number
        until = min(self._top(self._ends), self._top(self._leaves), self._top(self._stops) - OPEN_PLANS)
        sweeps, rows = until - first, len(self._decoding)
        if sweeps < OPEN_PLANS + 1:
            return 0
        rounds, rest = divmod(sweeps, self._size)
        pages = rounds * rows + sum([len(self._borders[(first + OPEN_PLANS + n) % self._size]) for n in range(rest)])
        if not self._width:
            pages = 0
        if not self._memory.allocate(pages):
            return 0
        flat, between = self._price.flat(rows, rows), sweeps - OPEN_PLANS  # plans first + 2 .. until - 1
        near = between * (self._bases + rows) + rows * (between * (first + OPEN_PLANS + until - 1) // 2)
        self._now = self._open[1].end + between * flat + self._price.attended(near, 0)
        self._open.clear()
        end = self._now
        for number in range(until, until + OPEN_PLANS):
            end += flat + self._price.attended(self._bases + rows * (number + 1), 0)
            self._open.append(LazyPlan(number, end, []))
        self._number = until + OPEN_PLANS
        return sweeps

    # plans -----------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        while len(self._open) < OPEN_PLANS and self._plan():
            pass

    def _plan(self) -> bool:
        """Make a plan; return False if there is nothing to do."""
        number = self._number
        while self._top(self._stops) <= number:
            self._stop(heappop(self._stops)[3], number)
        firsts, self._late = self._late, []
        self._firsts = firsts
        self._starved = False
        self._grow(number)
        rows = len(self._decoding)
        batch = BatchSums(rows, rows, self._bases + rows * (number + 1))
        self._budget = self._parts.config.sweep_tokens - rows
        plan = LazyPlan(number, self._open[-1].end if self._open else self._now, firsts)
        begun = self._begun = self._prompts
        self._prompts = []
        decoding: list[LazyRow] = []
        for row in begun:
            if row.running:
                self._chunk(row, batch, plan, decoding)
        while self._budget > 0 and not self._starved and (started := self._start()) is not None:
            self._chunk(started, batch, plan, decoding)
        self._begun = []
        self._prompts = sorted(row for row in self._prompts if row.running)
        if not batch.tokens:
            if self._waiting or self._skipped or self._prompts:
                raise NotPlain("the worker waits for memory")
            return False
        self._untried = self._starved
        for row in [*decoding, *[row for row in self._skipped if row.running]]:
            self._decode(row, number + 1)
        self._skipped = []
        plan.end += self._price.flat(batch.tokens, batch.sampled) + self._price.attended(batch.near, batch.far)
        self._open.append(plan)
        self._number += 1
        return True

    def _chunk(self, row: LazyRow, batch: BatchSums, plan: LazyPlan, decoding: list[LazyRow]) -> None:
        """Add as much of its prompt as the plan has room for, in tokens and in memory."""
        start, count = row.planned, min(row.known - row.planned, self._parts.config.chunk_size, self._budget)
        while self._width and row.paged * self._size < start + count:
            if self._memory.allocate(1):
                row.paged += 1
            elif not self._make_room(row, plan.number, picked=True):
                count = 0
                break
        if count <= 0:
            self._prompts.append(row)
            return
        if count == 1:
            batch.near += start + 1
        else:
            batch.far += count * start + count * (count + 1) // 2
        batch.tokens += count
        self._budget -= count
        row.planned += count
        row.last, row.chunk = plan.number, count
        left = row.known - row.planned
        if not left:
            batch.sampled += 1
            plan.firsts.append(row)
        elif left == 1:  # its last token goes with the decoding rows
            self._late.append(row)
        if left < 2:
            decoding.append(row)
        else:
            self._prompts.append(row)
