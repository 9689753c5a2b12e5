"""The worker of a lazy replay, known by numbers only: which sequences wait, prefill, decode or end, and the memory left.

When memory runs out, sequences are skipped and preempted in the order of ``sweep/planner.py`` and
``sweep/preemption.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from ..model.runs import LocalRoute
from ..sweep.parts import Parts
from .counted_memory import CountedMemory
from .plain_worker import NotPlain, pages_left


class LazyRow:
    """A sequence. ``planned``, ``known``: as in ``Columns``, at the last plan with a chunk of its prompt."""

    def __init__(
        self,
        request: str,
        key: tuple[int, float, int],
        limit: int,
        total: int,
        planned: int,
        known: int,
        paged: int = 0,
        name: int = 0,
    ) -> None:
        self.request, self.key, self.planned, self.known = request, key, planned, known
        self.limit = limit  # tokens
        self.total = total  # expected tokens at its end; ``limit`` or more: its limit ends it
        self.found: list[int] = []  # handles of leading pages that it shares
        self.paged = paged  # listed pages; while it decodes, those before
        self.base = 0  # decoding: its position in plan n is base + n
        self.name = name  # name of its own pages in the cache
        self.last = 0  # a plan that has it; during prefill or after a skip, the last one
        self.missed = 0  # the last plan that had no page for it
        self.chunk = 1  # positions in the plan before it decodes, or in ``last``
        self.joined = 0  # the first plan in which it decodes
        self.version = 0  # events of an older version are void
        self.computed = 0  # if it has left: positions whose pages were published
        self.running = self.leaving = self.requeue = False

    def __lt__(self, other: LazyRow) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:  # by identity; compiled classes with an order have no hash
        return id(self)


class LazyPlan:
    """An open plan. ``firsts``: rows whose first token it draws."""

    def __init__(self, number: int, end: float, firsts: list[LazyRow]) -> None:
        self.number, self.end, self.firsts = number, end, firsts


LazyEvent = tuple[int, tuple[int, float, int], int, LazyRow]  # (plan, key and version of the row, row)


class LazyWorker:
    """The state of the worker (see the module). open: number and end of each open plan. number: of the next one."""

    def __init__(self, parts: Parts, local: LocalRoute, open: Iterable[tuple[int, float]], number: int) -> None:
        self._parts = parts
        self._size, self._width = parts.config.page_size, sum(span.layers for span in local.spans)  # slots of a page
        self._memory = CountedMemory(*pages_left(parts, local))
        self._rested: dict[int, tuple[int, int]] = {}  # pages that became idle -> (evicted pages, cached pages) at that time
        self.preemptions = self._leaving = 0
        self._starved = False
        self._free_rows = parts.rows.free_rows
        self._number = number  # of the next plan
        self._references: dict[int, int] = {}  # page that may be shared -> sequences that list it
        self._making: set[bytes] = set()  # pages that a waiting sequence will make
        self._waiting: list[LazyRow] = []  # waiting sequences; the next one is last
        self._prompts: list[LazyRow] = []  # prompts in progress, by key
        self._begun: list[LazyRow] = []  # prompts when the plan being made began
        self._decoding: set[LazyRow] = set()
        self._bases = 0  # sum of their bases
        self._borders: list[set[LazyRow]] = [set() for _ in range(self._size)]  # rows that need a page, by plan modulo size
        self._skipped: list[LazyRow] = []  # decoding rows for which the plan being made has no page
        self._finals: set[LazyRow] = set()  # rows whose last token is being computed
        self._ties = self._budget = 0
        self._untried = True  # a sequence or memory has come since the machine's last plan
        self._firsts: list[LazyRow] = []  # rows whose first token comes with the plan being made
        self._late: list[LazyRow] = []  # rows whose first token comes with the next plan, in which they decode
        self._stops: list[LazyEvent] = []  # the row is in no plan from this one on
        self._ends: list[LazyEvent] = []  # its last token comes with the end of this plan
        self._leaves: list[LazyEvent] = []  # its row and its memory are free with the end of this plan
        self._open = deque(LazyPlan(number, end, []) for number, end in open)

    # what is to come -------------------------------------------------------------------------------------------------

    def _top(self, heap: list[LazyEvent]) -> int:
        """Return the plan of the next event; beyond all plans if there is none."""
        while heap and heap[0][2] != heap[0][3].version:
            heappop(heap)
        return heap[0][0] if heap else 1 << 60

    def _push(self, heap: list[LazyEvent], plan: int, row: LazyRow) -> None:
        heappush(heap, (plan, row.key, row.version, row))

    # sequences come and go -------------------------------------------------------------------------------------------

    def _start(self) -> LazyRow | None:
        """Start the next waiting sequence if it fits beside what prompts in progress will still take."""
        if not self._waiting or not self._free_rows:
            return None
        row, size, width = self._waiting[-1], self._size, self._width
        pages = sum([-(-other.known // size) - other.paged for other in self._prompts]) - (-(row.known + 1) // size)
        idle = [handle for handle in row.found if not self._references[handle]]
        if idle and self._memory.gone and self._may_be_evicted(idle):
            raise NotPlain("a request would find pages that are given up before it starts")
        if width and pages - len(row.found) + len(idle) > self._memory.room:
            return None
        self._waiting.pop()
        self._free_rows -= 1
        self._memory.pin(len(idle))
        for handle in row.found:
            self._references[handle] += 1
        row.paged = len(row.found) + self._memory.wake(row.name, (row.known - 1) // size - len(row.found))
        row.planned, row.running = row.paged * size, True
        return row

    def _may_be_evicted(self, handles: list[int]) -> bool:
        """Return whether one of these idle pages may have been evicted: the oldest go first."""
        gone = self._memory.gone
        if any(gone - since >= older for since, older in (self._rested.get(handle, (gone, 1)) for handle in handles)):
            return True
        first = set(handles).difference(self._rested)
        for older, handle in enumerate(self._parts.memory.pages.idle if first else ()):
            if handle in first or older >= gone:
                return older < gone
        return False

    def _decode(self, row: LazyRow, number: int) -> None:
        """Let a row be in all plans from this one on until it ends.

        No plan goes beyond its limit. The plan made meanwhile goes beyond a stop token.
        """
        row.base, row.joined = row.planned - number, number
        self._decoding.add(row)
        self._bases += row.base
        self._borders[-row.base % self._size].add(row)
        early = row.total < row.limit
        end = min(row.total, row.limit) - 2 - row.base
        self._push(self._ends, end, row)
        self._push(self._leaves, end + early, row)
        self._push(self._stops, end + 1 + early, row)

    def _stop(self, row: LazyRow, number: int) -> None:
        self._decoding.remove(row)
        self._bases -= row.base
        self._borders[-row.base % self._size].remove(row)
        row.planned = row.base + number
        row.paged = -(-row.planned // self._size)
        if row.running and row.planned == row.limit - 1:
            self._finals.add(row)

    def _release(self, row: LazyRow) -> None:
        """Free its row and its pages."""
        self._free_rows += 1
        self._leaving -= row.leaving
        self._finals.discard(row)
        own, published = row.paged - len(row.found), row.computed // self._size if self._parts.config.prefix_cache else 0
        self._memory.give_back(own, max(0, min(own, published - len(row.found))), row.name if row.requeue else 0)
        for handle in row.found:
            self._references[handle] -= 1
            if not self._references[handle]:
                self._rested[handle] = self._memory.gone, self._memory.cached
                self._memory.give_back(1, 1)
        if row.requeue:
            row.planned = row.paged = 0
            row.leaving = row.requeue = row.running = False
            self._waiting.append(row)
            self._waiting.sort(reverse=True)
        self._untried = True

    # memory is short -------------------------------------------------------------------------------------------------

    def _grow(self, number: int) -> None:
        """Take a page for each decoding row that needs one; while memory is short, by age, and the others are skipped."""
        if not self._width:
            return
        growing = self._borders[number % self._size]
        if self._memory.allocate(len(growing)):
            return
        for row in sorted(growing):
            while row in self._decoding and not self._memory.allocate(1):
                if not self._make_room(row, number, picked=False):
                    self._skip(row, number)

    def _running(self) -> list[LazyRow]:
        """Return the sequences that have started and do not leave."""
        rows = (*self._decoding, *self._skipped, *self._finals, *self._begun, *self._prompts)
        return [row for row in rows if row.running]

    def _make_room(self, row: LazyRow, number: int, *, picked: bool) -> bool:
        """Preempt a sequence for ``row``, as ``choose_victim`` does; return whether memory is free now.

        ``picked``: decoding rows are in the plan already.
        """
        self._starved = True
        if self._leaving:
            return False
        running = self._running()
        first = min(running)
        busy = self._decoding if picked else ()
        victims = [
            v for v in running
            if v is not row and v is not first and v not in busy and v.last != number and (row is first or row < v)
        ]  # fmt: skip
        if not victims:
            return False
        victim = min(victims, key=lambda v: (self._private_work(v, number), -v.key[0], -v.key[1]))
        self.preemptions += 1
        return self._preempt(victim, number)

    def _private_work(self, row: LazyRow, number: int) -> int:
        """Return the positions that would have to be recomputed: see ``preemption.py``."""
        shared = next((n for n, handle in enumerate(row.found) if self._references[handle] == 1), len(row.found))
        return max(0, self._computed(row, number) - shared * self._size)

    def _computed(self, row: LazyRow, number: int) -> int:
        """Return its positions that have KV now."""
        planned = row.base + number if row in self._decoding else row.planned
        prompt = row.joined >= number or row in self._begun or row in self._prompts
        return planned - (row.chunk if prompt else 1) * self._in_open(row, number)

    def _in_open(self, row: LazyRow, number: int) -> bool:
        """Return whether the plan before this one is open and has the row."""
        if not self._open or self._open[-1].number != number - 1:
            return False
        known = row.missed >= number - 1 or row in self._begun or row in self._prompts
        return row.last == number - 1 if known else True

    def _preempt(self, row: LazyRow, number: int) -> bool:
        """Preempt a row: its pages return when the plan that has it ends. Return True if that is now, as none has it."""
        in_open, row.computed = self._in_open(row, number), self._computed(row, number)
        row.running = False
        if row in self._finals:
            row.leaving = True
            self._leaving += 1
            return False
        end = 1 << 60
        if row in self._decoding:
            self._stop(row, number)
        if row in self._begun or row in self._prompts:
            self._prompts = [other for other in self._prompts if other is not row]
        else:
            end, row.known = min(row.total, row.limit) - 2 - row.planned + number, row.planned + 1
        row.version += 1
        for firsts in (self._late, self._firsts):
            if row in firsts:
                firsts.remove(row)
        row.requeue = end >= number
        if not in_open:
            self._release(row)
            return True
        row.leaving = True
        self._leaving += 1
        if not row.requeue:
            self._push(self._ends, number - 1, row)
        self._push(self._leaves, number - 1, row)
        return False

    def _skip(self, row: LazyRow, number: int) -> None:
        """Let a decoding row wait for a page until the next plan, or for its last token in flight."""
        in_open, end = self._in_open(row, number), min(row.total, row.limit) - 2 - row.base
        self._stop(row, number)
        row.version += 1
        if end < number:
            self._finals.add(row)
            self._push(self._ends, number - 1, row)
            self._push(self._leaves, number - 1, row)
            return
        if row in self._firsts:
            self._firsts.remove(row)
            self._late.append(row)
        row.last, row.missed = number - 1 if in_open else row.last, number
        self._skipped.append(row)
