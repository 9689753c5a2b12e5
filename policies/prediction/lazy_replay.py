"""Lazy replay: the same timeline as ``replay.py`` computes, at a cost that follows changes, not the number of sequences.

A decoding row is not touched while it decodes. Of all decoding rows together only their number is known, the sum of their
positions, and how many cross a page border in which sweep. Only starts, chunks of prompts and ends are simulated. It
covers what most workers do most of the time (``lazy_replay_support.py``), as long as memory lasts and no request waits for
pages that another one is about to make. Anything else raises ``LazyReplayUnsupported``, and the machine is simulated.
A test shows that both agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop

from ..model.runs import LocalRoute
from ..plan.coefficients import Coefficients
from ..plan.cost import KNEE
from ..requests.admission import admit
from ..sweep.columns import Status
from ..sweep.config import OPEN_PLANS
from ..sweep.events import Submission
from ..sweep.state import SweepState
from .lazy_replay_support import LazyReplayUnsupported, single_route
from .lazy_worker import LazyPlan, LazyRow, LazyWorker
from .timeline import Timeline, TimelineEntry


class LazyReplay:
    """A lazy replay (see the module), with the interface of ``MachineReplay`` of one worker. It owns the time.

    May raise LazyReplayUnsupported at any time.
    """

    def __init__(self, present: TimelineEntry, submissions: Iterable[Submission], now: float) -> None:
        state, arrivals = present.state, list(submissions)
        parts = state.parts
        self._began = self._now = now
        self.timeline, self._present = Timeline(), present
        self._local = single_route(parts, arrivals)
        self._price = RouteCost(self._local, present.coefficients)
        self._parts = parts
        begun = [(plan.number, now + left) for plan, left in present.open]
        self._worker = LazyWorker(parts, self._local, begun, state.number)
        coming = [self._sequence(of, of.tokens, of.page_hashes, (of.priority, of.arrival, 1 << 40)) for of in arrivals]
        self._take_over(state, present)
        self._fill()
        for of, row in zip(arrivals, coming, strict=True):  # one by one, as they arrive
            self._arrive(of, row)
            self._fill()

    # what is there ---------------------------------------------------------------------------------------------------

    def _sequence(self, of: Submission, tokens: list[int], hashes: list[bytes], key: tuple[int, float, int]) -> LazyRow:
        """Return a waiting sequence, with the pages that it will find."""
        worker = self._worker
        pages, known = self._parts.memory.pages, len(tokens)
        total = self._present.total(of, known)
        worker.ties += 1
        row = LazyRow(of.request, key, of.limit, total, 0, known, name=worker.ties)
        if self._parts.config.prefix_cache and worker.width:
            (span,) = self._local.spans
            for token_hash in hashes[: (known - 1) // worker.size]:
                if (handle := pages.find(token_hash, span)) is None:
                    maker = self._parts.pending_pages.maker((token_hash, span.lineage))
                    if maker is not None or token_hash in worker.making:
                        raise LazyReplayUnsupported("a request waits for a page that another one makes")
                    worker.making.add(token_hash)
                    break
                worker.references.setdefault(handle, 0)
                row.found.append(handle)
        return row

    def _take_over(self, state: SweepState, present: TimelineEntry) -> None:
        worker = self._worker
        rows, pages = state.parts.rows, state.parts.memory.pages
        last = {s: plan.number for plan, _ in present.open for s in state.batch(plan.number)}
        if len(present.open) != state.open_plans:
            raise LazyReplayUnsupported("a plan is missing")
        live = rows.live()
        for s in live:
            if rows.status[s] == Status.WAITING:
                row = self._sequence(rows.submission[s], rows.tokens_of(s), rows.hashes_of(s), rows.key(s))
                worker.waiting.append(row)
        worker.waiting.sort(reverse=True)
        for s in live:
            if rows.status[s] == Status.WAITING:
                continue
            of, length = rows.submission[s], rows.length[s]
            total = present.total(of, length)
            row = LazyRow(of.request, rows.key(s), of.limit, total, rows.planned[s], rows.known[s], rows.paged[s])
            for handle in rows.pages[s][0][: rows.paged[s]] if worker.width else []:
                if pages.references(handle) == 1 and handle not in worker.references:
                    break  # shared pages come first
                worker.references[handle] = worker.references.get(handle, 0) + 1
                row.found.append(handle)
            worker.ties += 1
            row.name = worker.ties
            row.last = last.get(s, 0)
            row.computed = rows.computed[s]
            row.chunk = row.planned - row.computed if rows.open[s] < OPEN_PLANS else 1
            early, end = row.total < row.limit, min(row.total, row.limit) - 2 - row.planned + worker.number
            row.running = rows.status[s] == Status.RUNNING
            if not row.running:
                row.requeue = bool(rows.requeue[s])
                row.leaving = True
                row.known = rows.known[s]
                row.computed = min(row.computed, rows.hashed[s] * worker.size)
                worker.leaving += 1
                if row.requeue and (row.known == row.limit or (early and row.total <= row.known)):
                    raise LazyReplayUnsupported("a request that was preempted ends")
                worker.push(worker.leaves, row.last, row)
            elif row.planned == row.limit - 1 and row.known == row.limit:  # it waits for its last token
                worker.finals.add(row)
                worker.push(worker.ends, row.last, row)
                worker.push(worker.leaves, row.last, row)
            elif row.known - row.planned > 1:
                worker.prompts.append(row)
            elif row.last == worker.number - 1 or end >= worker.number:
                row.missed = 0 if row.last == worker.number - 1 else worker.number - 1
                worker.decode(row, worker.number)
            else:  # it was skipped, and the token that it waits for will end it
                worker.finals.add(row)
                worker.push(worker.ends, row.last, row)
                worker.push(worker.leaves, row.last, row)
        worker.prompts.sort()

    def _arrive(self, of: Submission, row: LazyRow) -> None:
        worker = self._worker
        memory = self._parts.memory
        room = memory.pages_of(self._local.spans, of.tenant) * worker.size if worker.width else 1 << 62
        if admit(of.max_length, min(room, self._local.max_length)):
            self.timeline.returned.add(of.request)
            return
        worker.ties += 1
        row.key = (of.priority, of.arrival, (1 << 40) + worker.ties)
        worker.waiting.append(row)
        worker.waiting.sort(reverse=True)
        worker.untried = True

    # until -----------------------------------------------------------------------------------------------------------

    def play(self, request: str, horizon: int) -> None:
        """Simulate, see ``MachineReplay``."""
        timeline = self.timeline
        while request not in timeline.ends and request not in timeline.returned and timeline.sweeps[-1] < horizon:
            if not self._step():
                return

    @property
    def present(self) -> int:
        """The number of sequences that run and wait; a sequence runs until its last token is computed."""
        return len(self._worker.running()) + len(self._worker.waiting)

    @property
    def preemptions(self) -> int:
        """The number of preemptions so far."""
        return self._worker.preemptions

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """End one plan, or all until something happens; return False if nothing is left to do."""
        worker = self._worker
        if not worker.open:
            return False
        ended = self._jump() or self._commit()
        self.timeline.sweeps.append(self.timeline.sweeps[-1] + ended)
        self.timeline.times.append(self._now - self._began)
        if self._now >= self._parts.rows.next_deadline:
            raise LazyReplayUnsupported("a request expires")
        self._fill()
        return True

    def _commit(self) -> int:
        worker = self._worker
        plan = worker.open.popleft()
        self._now, at = plan.end, plan.end - self._began
        for row in plan.firsts:
            self.timeline.first_tokens.setdefault(row.request, at)
        while worker.top(worker.ends) <= plan.number:
            row = heappop(worker.ends)[3]
            self.timeline.ends[row.request] = at
            if not row.leaving:
                row.computed = min(row.total, row.limit) - 1
                row.leaving, row.running = True, False
                worker.leaving += 1
        while worker.top(worker.leaves) <= plan.number:
            worker.release(heappop(worker.leaves)[3])
        return 1

    def _jump(self) -> int:
        """End all plans before the next happening and make the two after them; return their number, 0 if too few.

        No waiting sequence could start with the last plan, and memory only shrinks until a sequence leaves.
        """
        worker = self._worker
        if (
            worker.untried
            or worker.late
            or len(worker.open) < OPEN_PLANS
            or worker.prompts
            or not worker.decoding
            or worker.open[0].firsts
            or worker.open[1].firsts
        ):
            return 0
        first = worker.open[0].number
        until = min(worker.top(worker.ends), worker.top(worker.leaves), worker.top(worker.stops) - OPEN_PLANS)
        sweeps, rows = until - first, len(worker.decoding)
        if sweeps < OPEN_PLANS + 1:
            return 0
        rounds, rest = divmod(sweeps, worker.size)
        pages = rounds * rows + sum([len(worker.borders[(first + OPEN_PLANS + n) % worker.size]) for n in range(rest)])
        if not worker.width:
            pages = 0
        if not worker.memory.allocate(pages):
            return 0
        flat, between = self._price.flat(rows, rows), sweeps - OPEN_PLANS  # plans first + 2 .. until - 1
        near = between * (worker.bases + rows) + rows * (between * (first + OPEN_PLANS + until - 1) // 2)
        self._now = worker.open[1].end + between * flat + self._price.attended(near, 0)
        worker.open.clear()
        end = self._now
        for number in range(until, until + OPEN_PLANS):
            end += flat + self._price.attended(worker.bases + rows * (number + 1), 0)
            worker.open.append(LazyPlan(number, end, []))
        worker.number = until + OPEN_PLANS
        return sweeps

    # plans -----------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        worker = self._worker
        while len(worker.open) < OPEN_PLANS and self._plan():
            pass

    def _plan(self) -> bool:
        """Make a plan; return False if there is nothing to do."""
        worker = self._worker
        number = worker.number
        while worker.top(worker.stops) <= number:
            worker.stop(heappop(worker.stops)[3], number)
        firsts, worker.late = worker.late, []
        worker.firsts = firsts
        worker.starved = False
        worker.grow(number)
        rows = len(worker.decoding)
        batch = BatchSums(rows, rows, worker.bases + rows * (number + 1))
        worker.budget = self._parts.config.sweep_tokens - rows
        plan = LazyPlan(number, worker.open[-1].end if worker.open else self._now, firsts)
        begun = worker.begun = worker.prompts
        worker.prompts = []
        decoding: list[LazyRow] = []
        for row in begun:
            if row.running:
                self._chunk(row, batch, plan, decoding)
        while worker.budget > 0 and not worker.starved and (started := worker.start()) is not None:
            self._chunk(started, batch, plan, decoding)
        worker.begun = []
        worker.prompts = sorted(row for row in worker.prompts if row.running)
        if not batch.tokens:
            if worker.waiting or worker.skipped or worker.prompts:
                raise LazyReplayUnsupported("the worker waits for memory")
            return False
        worker.untried = worker.starved
        for row in [*decoding, *[row for row in worker.skipped if row.running]]:
            worker.decode(row, number + 1)
        worker.skipped = []
        plan.end += self._price.flat(batch.tokens, batch.sampled) + self._price.attended(batch.near, batch.far)
        worker.open.append(plan)
        worker.number += 1
        return True

    def _chunk(self, row: LazyRow, batch: BatchSums, plan: LazyPlan, decoding: list[LazyRow]) -> None:
        """Add as much of its prompt as the plan has room for, in tokens and in memory."""
        worker = self._worker
        start, count = row.planned, min(row.known - row.planned, self._parts.config.chunk_size, worker.budget)
        while worker.width and row.paged * worker.size < start + count:
            if worker.memory.allocate(1):
                row.paged += 1
            elif not worker.make_room(row, plan.number, picked=True):
                count = 0
                break
        if count <= 0:
            worker.prompts.append(row)
            return
        if count == 1:
            batch.near += start + 1
        else:
            batch.far += count * start + count * (count + 1) // 2
        batch.tokens += count
        worker.budget -= count
        row.planned += count
        row.last, row.chunk = plan.number, count
        left = row.known - row.planned
        if not left:
            batch.sampled += 1
            plan.firsts.append(row)
        elif left == 1:  # its last token goes with the decoding rows
            worker.late.append(row)
        if left < 2:
            decoding.append(row)
        else:
            worker.prompts.append(row)


class BatchSums:
    """Sums over the rows of a plan. near: positions that rows of one token attend to. far: positions of longer chunks."""

    def __init__(self, tokens: int, sampled: int, near: int) -> None:
        self.tokens = tokens
        self.sampled = sampled
        self.near = near
        self.far = 0


class RouteCost:
    """The cost model for plans of one route, from sums over their rows."""

    def __init__(self, route: LocalRoute, coefficients: Coefficients) -> None:
        self._c = c = coefficients
        sized = bool(c.parameters)
        self._runs = [(run.nbytes / c.parameters, run.head) for run in route.runs] if sized else [(1.0, False)]
        self._steps, self._heads = len(route.runs), sum(run.head for run in route.runs)
        self._kv = sum(run.kv_bytes for run in route.runs) / c.kv if sized else 1.0

    def flat(self, tokens: int, sampled: int) -> float:
        """Return all costs except the ones that grow with positions."""
        c = self._c
        seconds = c.base + c.step * (self._steps if sampled else self._steps - self._heads) + c.row * sampled
        for share, head in self._runs:
            rows = sampled if head else tokens
            if rows:
                seconds += share * (c.read + c.token * rows + c.beyond * max(0, rows - KNEE))
        return seconds

    def attended(self, near: int, far: int) -> float:
        """Return the cost of positions that decoding rows (``near``) and prompts (``far``) attend to."""
        return self._kv * (self._c.context * near + self._c.prefill * far)
