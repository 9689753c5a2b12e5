"""Lazy replay: the same course as ``replay.py`` plays, at a cost that follows what changes, not who is there.

A decoding row is not touched while it decodes: of all of them together are known their number, the sum of their positions,
and how many come past a page border in which sweep. Only starts, chunks of prompts and ends are played. It covers what most
workers do most of the time (``plain_worker.py``), as long as memory lasts and no request waits for pages that another one is
about to make. Everything else is ``NotPlain``, and the machine itself is played. A test shows that both come to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from blockwright.policies.prediction.lengths import corrected
from blockwright.policies.prediction.plain_worker import NotPlain, cached, plain_route, room
from blockwright.policies.prediction.replay import AHEAD, Course, Present
from blockwright.policies.prediction.route_cost import BatchSums, RouteCost
from blockwright.policies.requests.admission import admit
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.state import SweepState


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence. ``planned``, ``known``: as in ``Columns``, at the last plan that was made with a chunk of its prompt."""

    request: str
    key: tuple[int, float, int]
    limit: int  # tokens
    total: int  # tokens that it is expected to end with; ``limit`` or more: its limit ends it
    planned: int
    known: int
    found: list[int] = field(default_factory=list)  # handles of leading pages that it shares, span by span
    paged: int = 0
    base: int = 0  # decoding: its position in plan n is base + n

    def __lt__(self, other: _Row) -> bool:
        return self.key < other.key


@dataclass(slots=True)
class _Plan:
    number: int
    end: float
    firsts: list[_Row]  # whose first token it draws


class LazyReplay:
    """See the module. Offers what ``MachineReplay`` of one worker does; raises NotPlain when made, or on the way."""

    preemptions = 0  # for which memory would have to be short

    def __init__(self, present: Present, submissions: Iterable[Submission], now: float) -> None:
        state, arrivals = present.state, list(submissions)
        self._parts = parts = state.parts
        self._began = self._now = now
        self.course = Course()
        self._local = plain_route(parts, arrivals)
        self._price = RouteCost(self._local, present.coefficients)
        self._size, self._width = parts.config.page_size, sum(span.layers for span in self._local.spans)  # slots of a page
        self._room = room(parts, self._local)  # slots that are free, or that cached pages would give up
        self._unused = self._room - cached(parts, self._local)  # those of them that are free: after these pages are evicted
        self._taken = 0
        self._free_rows = parts.rows.free_rows
        self._number = state.number
        self._references: dict[int, int] = {}  # sequences that list a page which several may list
        self._making: set[bytes] = set()  # pages that somebody who waits will make
        self._waiting: list[_Row] = []  # the next one last
        self._prompts: list[_Row] = []  # in progress, by key
        self._rows = self._bases = 0  # decoding rows, and the sum of their bases
        self._borders = [0] * self._size  # how many of them need a page in plans of this remainder
        self._ties = self._budget = 0
        self._untried = True  # somebody has come, or more is there than the machine's last plan knew of
        self._late: list[_Row] = []  # whose first token comes with the next plan, in which they decode
        # (plan, tie-breaker, row)
        self._stops: list[tuple[int, int, _Row]] = []  # in no plan from this one on
        self._ends: list[tuple[int, int, _Row]] = []  # its last token comes with the end of this plan
        self._leaves: list[tuple[int, int, _Row]] = []  # its row and its memory are free with the end of this one
        self._open = deque(_Plan(plan.number, now + left, []) for plan, left in present.open)
        coming = [self._sequence(of, of.tokens, of.page_hashes, (of.priority, of.arrival, 1 << 40)) for of in arrivals]
        self._take_over(state, present)
        self._fill()
        for of, row in zip(arrivals, coming, strict=True):  # one by one, as they come
            self._arrive(of, row)
            self._fill()

    # what is there ---------------------------------------------------------------------------------------------------

    def _sequence(self, of: Submission, tokens: list[int], hashes: list[bytes], key: tuple[int, float, int]) -> _Row:
        """One that waits, with the pages that it will find."""
        pages, known = self._parts.memory.pages, len(tokens)
        total = of.prompt_length + corrected(of.expected, of.prompt_length, known) if of.expected else of.max_length
        row = _Row(of.request, key, of.max_length, total, 0, known)
        if self._parts.config.prefix_cache and self._width:
            (span,) = self._local.spans
            for token_hash in hashes[: (known - 1) // self._size]:
                if (handle := pages.find(token_hash, span)) is None:
                    maker = self._parts.announcements.maker((token_hash, span.lineage))
                    if maker is not None or token_hash in self._making:
                        raise NotPlain("a request waits for a page that another one makes")
                    self._making.add(token_hash)
                    break
                self._references.setdefault(handle, 0)
                row.found.append(handle)
        return row

    def _take_over(self, state: SweepState, present: Present) -> None:
        rows, pages = state.parts.rows, state.parts.memory.pages
        last = {s: plan.number for plan, _ in present.open for s in state.batch(plan.number)}
        if any(plan.reasons.get("starved") for plan, _ in present.open) or len(present.open) != state.open_plans:
            raise NotPlain("memory is short")
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
            total = of.prompt_length + corrected(of.expected, of.prompt_length, length) if of.expected else of.max_length
            row = _Row(of.request, rows.key(s), of.max_length, total, rows.planned[s], rows.known[s], [], rows.paged[s])
            for handle in rows.pages[s][0][: rows.paged[s]] if self._width else []:
                if pages.references(handle) == 1 and handle not in self._references:
                    break  # those that it shares are the first ones
                self._references[handle] = self._references.get(handle, 0) + 1
                row.found.append(handle)
            if rows.status[s] == Status.LEAVING:
                self._push(self._leaves, last[s], row)
            elif row.planned == row.limit - 1 and row.known == row.limit:
                self._push(self._ends, last[s], row)  # it waits for its last token
                self._push(self._leaves, last[s], row)
            elif row.known - row.planned > 1:
                self._prompts.append(row)
            else:
                self._decode(row, self._number)
        self._prompts.sort()

    def _arrive(self, of: Submission, row: _Row) -> None:
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

    def _push(self, heap: list[tuple[int, int, _Row]], plan: int, row: _Row) -> None:
        self._ties += 1
        heappush(heap, (plan, self._ties, row))

    # until -----------------------------------------------------------------------------------------------------------

    def play(self, request: str, horizon: int) -> None:
        """See ``MachineReplay``."""
        course = self.course
        while request not in course.ends and request not in course.returned and course.sweeps[-1] < horizon:
            if not self._step():
                return

    @property
    def present(self) -> int:
        """Sequences that are still there."""
        return self._rows + len(self._prompts) + len(self._waiting)

    # one step --------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """A plan ends, or all until something happens. False: nothing is left to do."""
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
            self.course.first_tokens[row.request] = at
        while self._ends and self._ends[0][0] <= plan.number:
            self.course.ends[heappop(self._ends)[2].request] = at
        while self._leaves and self._leaves[0][0] <= plan.number:
            self._release(heappop(self._leaves)[2])
        return 1

    def _release(self, row: _Row) -> None:
        self._free_rows += 1
        self._room += (row.paged - len(row.found)) * self._width
        for handle in row.found:
            self._references[handle] -= 1
            if not self._references[handle]:
                self._room += self._width

    def _jump(self) -> int:
        """All plans that end before anything happens; the two after them are made, too. 0: there are too few.

        Whoever waits could not start with the last plan, and there is ever less memory until somebody leaves.
        """
        if (
            self._untried
            or self._late
            or len(self._open) < AHEAD
            or self._prompts
            or not self._rows
            or self._open[0].firsts
            or self._open[1].firsts
        ):
            return 0
        first = self._open[0].number
        until = min(self._ends[0][0], self._leaves[0][0], self._stops[0][0] - AHEAD)  # the first plan with whose end it does
        sweeps = until - first
        if sweeps < AHEAD + 1:
            return 0
        rounds, rest = divmod(sweeps, self._size)
        pages = rounds * self._rows + sum([self._borders[(first + AHEAD + n) % self._size] for n in range(rest)])
        self._take(pages)
        flat, between = self._price.flat(self._rows, self._rows), sweeps - AHEAD  # plans first + 2 .. until - 1
        near = between * (self._bases + self._rows) + self._rows * (between * (first + AHEAD + until - 1) // 2)
        self._now = self._open[1].end + between * flat + self._price.attended(near, 0)
        self._open.clear()
        end = self._now
        for number in range(until, until + AHEAD):
            end += flat + self._price.attended(self._bases + self._rows * (number + 1), 0)
            self._open.append(_Plan(number, end, []))
        self._number = until + AHEAD
        return sweeps

    # plans -----------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        while len(self._open) < AHEAD and self._plan():
            pass

    def _plan(self) -> bool:
        """Make a plan; False: there is nothing to do."""
        number = self._number
        while self._stops and self._stops[0][0] <= number:
            self._stop(heappop(self._stops)[2], number)
        self._take(self._borders[number % self._size])
        batch = BatchSums(self._rows, self._rows, self._bases + self._rows * (number + 1))
        self._budget = self._parts.config.sweep_tokens - self._rows
        firsts, self._late = self._late, []
        plan = _Plan(number, self._open[-1].end if self._open else self._now, firsts)
        begun, self._prompts = self._prompts, []
        decoding = [row for row in begun if self._chunk(row, batch, plan)]
        while self._budget > 0 and (row := self._start()) is not None:
            if self._chunk(row, batch, plan):
                decoding.append(row)
        if not batch.tokens:
            if self._waiting:
                raise NotPlain("the worker waits for memory")
            return False
        self._untried = False
        for row in decoding:
            self._decode(row, number + 1)
        self._prompts.sort()
        plan.end += self._price.flat(batch.tokens, batch.sampled) + self._price.attended(batch.near, batch.far)
        self._open.append(plan)
        self._number += 1
        return True

    def _chunk(self, row: _Row, batch: BatchSums, plan: _Plan) -> bool:
        """As much of its prompt as the plan has room for. True: it decodes from the next plan on."""
        start, count = row.planned, min(row.known - row.planned, self._parts.config.chunk_size, self._budget)
        if count == 1:
            batch.near += start + 1
        elif count > 1:
            batch.far += count * start + count * (count + 1) // 2
        batch.tokens += count
        self._budget -= count
        row.planned += count
        pages = -(-row.planned // self._size)
        self._take(max(0, pages - row.paged))
        row.paged = max(pages, row.paged)
        left = row.known - row.planned
        if not left:
            batch.sampled += 1
            plan.firsts.append(row)
        elif left == 1:  # its last token goes with those that decode
            self._late.append(row)
        else:
            self._prompts.append(row)
        return left < 2

    def _start(self) -> _Row | None:
        """The next one that waits, if it fits beside what prompts in progress will still take."""
        if not self._waiting or not self._free_rows:
            return None
        row, size, width = self._waiting[-1], self._size, self._width
        pages = sum([-(-other.known // size) - other.paged for other in self._prompts]) - (-(row.known + 1) // size)
        idle = sum([not self._references[handle] for handle in row.found])
        if idle and self._taken > self._unused and self._may_be_evicted(row):
            raise NotPlain("a request would find pages that are given up before it starts")
        if (pages - len(row.found) + idle) * width > self._room:
            return None
        self._waiting.pop()
        self._free_rows -= 1
        self._room -= idle * width
        for handle in row.found:
            self._references[handle] += 1
        row.paged = len(row.found)
        row.planned = row.paged * size
        return row

    def _may_be_evicted(self, row: _Row) -> bool:
        """Whether one of the idle pages that it would share may have gone: the oldest go first."""
        pages, found, before = self._parts.memory.pages, set(row.found), 0
        for handle in pages.idle:
            if handle in found or before >= self._taken - self._unused:
                return handle in found
            before += self._width
        return False

    def _decode(self, row: _Row, number: int) -> None:
        """It is in all plans from this one on until it ends. No plan goes beyond its limit; beyond a stop token goes the one
        that was made meanwhile."""
        row.base = base = row.planned - number
        self._rows += 1
        self._bases += base
        self._borders[-base % self._size] += 1
        early = row.total < row.limit
        end = min(row.total, row.limit) - 2 - base
        self._push(self._ends, end, row)
        self._push(self._leaves, end + early, row)
        self._push(self._stops, end + 1 + early, row)

    def _stop(self, row: _Row, number: int) -> None:
        self._rows -= 1
        self._bases -= row.base
        self._borders[-row.base % self._size] -= 1
        row.planned = row.base + number
        row.paged = -(-row.planned // self._size)

    def _take(self, pages: int) -> None:
        self._room -= pages * self._width
        self._taken += pages * self._width
        if self._room < 0:
            raise NotPlain("memory is short")
