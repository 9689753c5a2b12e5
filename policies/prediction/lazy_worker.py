"""The worker of a lazy replay, known by numbers only: which sequences wait, prefill, decode or end, and the memory left.

When memory runs out, sequences are skipped and preempted in the order of ``sweep/planner.py`` and
``sweep/preemption.py``. KV pages are counts: free pages, and cached ones in their eviction order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from ..model.runs import LocalRoute
from ..sweep.parts import Parts
from .lazy_replay_support import LazyReplayUnsupported, pages_left


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
        self.request = request
        self.key = key
        self.planned = planned
        self.known = known
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
        self.number = number
        self.end = end
        self.firsts = firsts


LazyEvent = tuple[int, tuple[int, float, int], int, LazyRow]  # (plan, key and version of the row, row)


class LazyWorker:
    """The state of the worker (see the module). open: number and end of each open plan. number: of the next one."""

    def __init__(self, parts: Parts, local: LocalRoute, open: Iterable[tuple[int, float]], number: int) -> None:
        self._parts = parts
        self.size, self.width = parts.config.page_size, sum(span.layers for span in local.spans)  # slots of a page
        self.memory = CountedMemory(*pages_left(parts, local))
        self._rested: dict[int, tuple[int, int]] = {}  # pages that became idle -> (evicted pages, cached pages) at that time
        self.preemptions = self.leaving = 0
        self.starved = False
        self._free_rows = parts.rows.free_rows
        self.number = number  # of the next plan
        self.references: dict[int, int] = {}  # page that may be shared -> sequences that list it
        self.making: set[bytes] = set()  # pages that a waiting sequence will make
        self.waiting: list[LazyRow] = []  # waiting sequences; the next one is last
        self.prompts: list[LazyRow] = []  # prompts in progress, by key
        self.begun: list[LazyRow] = []  # prompts when the plan being made began
        self.decoding: set[LazyRow] = set()
        self.bases = 0  # sum of their bases
        self.borders: list[set[LazyRow]] = [set() for _ in range(self.size)]  # rows that need a page, by plan modulo size
        self.skipped: list[LazyRow] = []  # decoding rows for which the plan being made has no page
        self.finals: set[LazyRow] = set()  # rows whose last token is being computed
        self.ties = self.budget = 0
        self.untried = True  # a sequence or memory has come since the machine's last plan
        self.firsts: list[LazyRow] = []  # rows whose first token comes with the plan being made
        self.late: list[LazyRow] = []  # rows whose first token comes with the next plan, in which they decode
        self.stops: list[LazyEvent] = []  # the row is in no plan from this one on
        self.ends: list[LazyEvent] = []  # its last token comes with the end of this plan
        self.leaves: list[LazyEvent] = []  # its row and its memory are free with the end of this plan
        self.open = deque(LazyPlan(number, end, []) for number, end in open)

    # what is to come -------------------------------------------------------------------------------------------------

    def top(self, heap: list[LazyEvent]) -> int:
        """Return the plan of the next event; beyond all plans if there is none."""
        while heap and heap[0][2] != heap[0][3].version:
            heappop(heap)
        return heap[0][0] if heap else 1 << 60

    def push(self, heap: list[LazyEvent], plan: int, row: LazyRow) -> None:
        heappush(heap, (plan, row.key, row.version, row))

    # sequences come and go -------------------------------------------------------------------------------------------

    def start(self) -> LazyRow | None:
        """Start the next waiting sequence if it fits beside what prompts in progress will still take."""
        if not self.waiting or not self._free_rows:
            return None
        row = self.waiting[-1]
        size = self.size
        width = self.width
        pages = sum([-(-other.known // size) - other.paged for other in self.prompts]) - (-(row.known + 1) // size)
        idle = [handle for handle in row.found if not self.references[handle]]
        if idle and self.memory.gone and self._may_be_evicted(idle):
            raise LazyReplayUnsupported("a request would find pages that are given up before it starts")
        if width and pages - len(row.found) + len(idle) > self.memory.room:
            return None
        self.waiting.pop()
        self._free_rows -= 1
        self.memory.pin(len(idle))
        for handle in row.found:
            self.references[handle] += 1
        row.paged = len(row.found) + self.memory.reactivate(row.name, (row.known - 1) // size - len(row.found))
        row.planned, row.running = row.paged * size, True
        return row

    def _may_be_evicted(self, handles: list[int]) -> bool:
        """Return whether one of these idle pages may have been evicted: the oldest go first."""
        gone = self.memory.gone
        if any(gone - since >= older for since, older in (self._rested.get(handle, (gone, 1)) for handle in handles)):
            return True
        first = set(handles).difference(self._rested)
        for older, handle in enumerate(self._parts.memory.pages.idle if first else ()):
            if handle in first or older >= gone:
                return older < gone
        return False

    def decode(self, row: LazyRow, number: int) -> None:
        """Let a row be in all plans from this one on until it ends.

        No plan goes beyond its limit. The plan made meanwhile goes beyond a stop token.
        """
        row.base, row.joined = row.planned - number, number
        self.decoding.add(row)
        self.bases += row.base
        self.borders[-row.base % self.size].add(row)
        early = row.total < row.limit
        end = min(row.total, row.limit) - 2 - row.base
        self.push(self.ends, end, row)
        self.push(self.leaves, end + early, row)
        self.push(self.stops, end + 1 + early, row)

    def stop(self, row: LazyRow, number: int) -> None:
        self.decoding.remove(row)
        self.bases -= row.base
        self.borders[-row.base % self.size].remove(row)
        row.planned = row.base + number
        row.paged = -(-row.planned // self.size)
        if row.running and row.planned == row.limit - 1:
            self.finals.add(row)

    def release(self, row: LazyRow) -> None:
        """Free its row and its pages."""
        self._free_rows += 1
        self.leaving -= row.leaving
        self.finals.discard(row)
        own, published = row.paged - len(row.found), row.computed // self.size if self._parts.config.prefix_cache else 0
        self.memory.give_back(own, max(0, min(own, published - len(row.found))), row.name if row.requeue else 0)
        for handle in row.found:
            self.references[handle] -= 1
            if not self.references[handle]:
                self._rested[handle] = self.memory.gone, self.memory.cached
                self.memory.give_back(1, 1)
        if row.requeue:
            row.planned = row.paged = 0
            row.leaving = row.requeue = row.running = False
            self.waiting.append(row)
            self.waiting.sort(reverse=True)
        self.untried = True

    # memory is short -------------------------------------------------------------------------------------------------

    def grow(self, number: int) -> None:
        """Take a page for each decoding row that needs one; while memory is short, by age, and the others are skipped."""
        if not self.width:
            return
        growing = self.borders[number % self.size]
        if self.memory.allocate(len(growing)):
            return
        for row in sorted(growing):
            while row in self.decoding and not self.memory.allocate(1):
                if not self.make_room(row, number, picked=False):
                    self._skip(row, number)

    def running(self) -> list[LazyRow]:
        """Return the sequences that have started and do not leave."""
        rows = (*self.decoding, *self.skipped, *self.finals, *self.begun, *self.prompts)
        return [row for row in rows if row.running]

    def make_room(self, row: LazyRow, number: int, *, picked: bool) -> bool:
        """Preempt a sequence for ``row``, as ``choose_victim`` does; return whether memory is free now.

        ``picked``: decoding rows are in the plan already.
        """
        self.starved = True
        if self.leaving:
            return False
        running = self.running()
        first = min(running)
        busy = self.decoding if picked else ()
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
        shared = next((n for n, handle in enumerate(row.found) if self.references[handle] == 1), len(row.found))
        return max(0, self._computed(row, number) - shared * self.size)

    def _computed(self, row: LazyRow, number: int) -> int:
        """Return its positions that have KV now."""
        planned = row.base + number if row in self.decoding else row.planned
        prompt = row.joined >= number or row in self.begun or row in self.prompts
        return planned - (row.chunk if prompt else 1) * self._in_open(row, number)

    def _in_open(self, row: LazyRow, number: int) -> bool:
        """Return whether the plan before this one is open and has the row."""
        if not self.open or self.open[-1].number != number - 1:
            return False
        known = row.missed >= number - 1 or row in self.begun or row in self.prompts
        return row.last == number - 1 if known else True

    def _preempt(self, row: LazyRow, number: int) -> bool:
        """Preempt a row: its pages return when the plan that has it ends. Return True if that is now, as none has it."""
        in_open, row.computed = self._in_open(row, number), self._computed(row, number)
        row.running = False
        if row in self.finals:
            row.leaving = True
            self.leaving += 1
            return False
        end = 1 << 60
        if row in self.decoding:
            self.stop(row, number)
        if row in self.begun or row in self.prompts:
            self.prompts = [other for other in self.prompts if other is not row]
        else:
            end, row.known = min(row.total, row.limit) - 2 - row.planned + number, row.planned + 1
        row.version += 1
        for firsts in (self.late, self.firsts):
            if row in firsts:
                firsts.remove(row)
        row.requeue = end >= number
        if not in_open:
            self.release(row)
            return True
        row.leaving = True
        self.leaving += 1
        if not row.requeue:
            self.push(self.ends, number - 1, row)
        self.push(self.leaves, number - 1, row)
        return False

    def _skip(self, row: LazyRow, number: int) -> None:
        """Let a decoding row wait for a page until the next plan, or for its last token in flight."""
        in_open, end = self._in_open(row, number), min(row.total, row.limit) - 2 - row.base
        self.stop(row, number)
        row.version += 1
        if end < number:
            self.finals.add(row)
            self.push(self.ends, number - 1, row)
            self.push(self.leaves, number - 1, row)
            return
        if row in self.firsts:
            self.firsts.remove(row)
            self.late.append(row)
        row.last, row.missed = number - 1 if in_open else row.last, number
        self.skipped.append(row)


class CountedMemory:
    """Pages of one size. Cached pages have no owner, or belong to a preempted sequence that may find them again."""

    def __init__(self, free: int, cached: int) -> None:
        self.free = free
        self.gone = 0  # pages no longer cached: evicted or listed again
        self._cached: deque[list[int]] = deque([[0, cached]])  # [owner (0: none), pages]; oldest first
        self.room = free + cached  # pages that can be taken

    def allocate(self, pages: int) -> bool:
        """Take pages at the cost of cached ones; return False and take none if there are too few."""
        if pages > self.room:
            return False
        self.room -= pages
        self.free -= pages
        while self.free < 0:
            oldest = self._cached[0]
            gone = min(oldest[1], -self.free)
            oldest[1] -= gone
            self.free += gone
            self.gone += gone
            if not oldest[1]:
                self._cached.popleft()
        return True

    @property
    def cached(self) -> int:
        return self.room - self.free

    def give_back(self, pages: int, cached: int, owner: int = 0) -> None:
        """Return pages, of which ``cached`` stay as cache."""
        self.room += pages
        self.free += pages - cached
        if cached:
            self._cached.append([owner, cached])

    def pin(self, pages: int) -> None:
        """List ``pages`` cached pages without owner again."""
        self.room -= pages
        self.gone += pages
        for part in self._cached if pages else ():
            if not part[0]:
                found = min(pages, part[1])
                part[1] -= found
                pages -= found

    def reactivate(self, owner: int, limit: int) -> int:
        """List the leading pages of a sequence that are still cached again, at most ``limit``; return how many."""
        for part in self._cached:
            if part[0] == owner:
                found = min(part[1], limit)
                part[0], part[1] = 0, part[1] - found
                self.room -= found
                self.gone += found
                return found
        return 0
