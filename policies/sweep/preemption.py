"""Preemption: who is preempted when KV memory runs out, and what must not be taken by those who start.

Memory is taken page by page, so running sequences can run out of memory together. Then one of them gives all its pages back,
returns to its place in the queue and is computed again later: no page is copied out, because recomputing a prompt in large
chunks is cheap beside what swapping would cost every plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..memory.pages import PageTable
from ..memory.worker_memory import WorkerMemory
from ..model.runs import LocalRoute
from .columns import Place
from .queue import SequenceQueue
from .rows import RowTable


def choose_victim(
    rows: RowTable, pages: PageTable, queue: SequenceQueue, running: Sequence[int], s: int, busy: set[int]
) -> int | None:
    """The sequence that gives its memory up for ``s``; None: ``s`` has to wait.

    Only younger ones than ``s`` may be chosen (see ``ages``), so that the oldest always ends, and then the next: the work
    done grows. Among the candidates the one that loses the least of its own work goes; of equals the youngest. Where they
    are of several accounts, one goes of that which was given most. ``running``: those who may give way, or all. Those that
    are ``busy`` are in the plan that is being made: their pages are about to be written.
    """
    found = ages(rows, {s, *running})
    victims = [v for v in running if v not in busy and found[v] > found[s]]
    if not victims:
        return None
    if len({rows.tenant[v] for v in victims}) > 1:
        most = max(queue.rank(rows.key(v), rows.tenant[v]) for v in victims)
        victims = [v for v in victims if queue.rank(rows.key(v), rows.tenant[v]) == most]
    return min(victims, key=lambda v: (private_work(rows, pages, v), -rows.priority[v], -rows.submission[v].arrival))


def ages(rows: RowTable, sequences: Iterable[int]) -> dict[int, tuple[int, float, str]]:
    """The place of each in one order of all sequences of the cluster: by class, arrival, name.

    Priorities do not count between accounts, as anybody may name any. Within an account they do, where nobody else can see
    it: its sequences that are on this worker alone trade their ages, and the first in the account's own order gets the
    oldest.
    """
    found = {s: rows.age(s) for s in sequences}
    accounts: dict[str, list[int]] = {}
    for s in found:
        if rows.place[s] == Place.LOCAL:
            accounts.setdefault(rows.tenant[s], []).append(s)
    for own in accounts.values():
        found.update(zip(sorted(own, key=rows.key), sorted([found[s] for s in own]), strict=True))
    return found


def overdue_guest(rows: RowTable, overdue: Sequence[int], s: int) -> int | None:
    """The guest that gives its memory up for the start of ``s``: of those whose countdowns are over and that are younger,
    the one that left first."""
    return next((guest for guest in overdue if rows.age(guest) > rows.age(s)), None)


def private_work(rows: RowTable, pages: PageTable, s: int) -> int:
    """Work that preempting ``s`` throws away: bytes of parameters that its tokens have to pass again.

    Leading pages that others list too stay where they are, and ``s`` would find them again.
    """
    shared = 0
    for page in range(rows.paged[s]):
        if any(pages.references(handle) == 1 for handle in rows.page(s, page)):
            break
        shared += 1
    kept = shared * rows.page_size
    return (rows.computed[s] - min(rows.computed[s], kept)) * max(rows.cost_compute[s], 1)


class Promises:
    """Slots, by arena, that running sequences will still take for prompts that they have begun.

    A prompt takes its pages chunk by chunk. Were only pages taken so far counted, several long prompts would start side by
    side, meet in the middle and preempt one another; so who starts must fit beside what was promised. Answers are not
    promised: most end long before their limit, and a preemption now and then costs less than memory that stays empty.
    """

    def __init__(self, page_size: int, memory: WorkerMemory) -> None:
        self._page_size, self._memory = page_size, memory
        self.slots: dict[str, int] = {}
        self.bytes: dict[str, int] = {}  # the same as bytes by account, where accounts have caps

    def beside(self, more: Mapping[str, int]) -> dict[str, int]:
        """Slots of these and ``more``."""
        return {arena: self.slots.get(arena, 0) + more.get(arena, 0) for arena in (*self.slots, *more)}

    def add(self, rows: RowTable, s: int) -> None:
        """Count what the prompt of ``s`` has not taken yet."""
        local: LocalRoute = rows.route[s]
        unplanned = rows.known[s] - rows.planned[s]
        tokens = rows.known[s] if unplanned > 1 else rows.planned[s]
        if local.spans and (pages := -(-tokens // self._page_size) - rows.paged[s]) > 0:
            for span in local.spans:
                self.slots[span.arena] = self.slots.get(span.arena, 0) + pages * span.layers
            if self._memory.capped:
                taken = pages * self._memory.page_bytes(local.spans)
                self.bytes[rows.tenant[s]] = self.bytes.get(rows.tenant[s], 0) + taken
