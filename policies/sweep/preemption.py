"""Preemption: the choice of a victim when running sequences run out of memory, and the memory kept from new starts.

Memory is taken page by page, so running sequences can run out of memory together. Then one of them gives all its pages
back, returns to its place in the queue and is recomputed later. No page is swapped out, because recomputing a prompt in
large chunks is cheap compared with what swapping would cost every plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..memory.pages import PageTable
from ..memory.worker_memory import WorkerMemory
from ..model.runs import LocalRoute
from .columns import Place
from .row_table import RowTable
from .sequence_queue import SequenceQueue


def choose_victim(
    rows: RowTable, pages: PageTable, queue: SequenceQueue, running: Sequence[int], s: int, busy: set[int]
) -> int | None:
    """Return the sequence that gives its memory up for ``s``; None: ``s`` has to wait.

    Only sequences younger than ``s`` may be chosen (see ``ages``), so that the oldest always ends, and then the next:
    progress is guaranteed. The candidate that loses the least of its own work goes; of equals the youngest. If candidates
    are of several accounts, the victim is of the account that was given most.

    running: candidates. busy: sequences in the plan being made, whose pages are about to be written.
    """
    found = ages(rows, {s, *running})
    victims = [v for v in running if v not in busy and found[v] > found[s]]
    if not victims:
        return None
    if len({rows.tenant[v] for v in victims}) > 1:
        highest = max(queue.rank(rows.key(v), rows.tenant[v]) for v in victims)
        victims = [v for v in victims if queue.rank(rows.key(v), rows.tenant[v]) == highest]
    return min(victims, key=lambda v: (private_work(rows, pages, v), -rows.priority[v], -rows.submission[v].arrival))


def ages(rows: RowTable, sequences: Iterable[int]) -> dict[int, tuple[int, float, str]]:
    """Return the place of each sequence in one order for the whole cluster: by class, arrival, name.

    Priorities do not count between accounts, since any client may choose any priority. Within an account they count where
    no other account can notice: its sequences that are on this worker alone trade their ages, so that the first in the
    account's own order gets the oldest.
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
    """Return the guest that gives its memory up for the start of ``s``, or None.

    Of the guests whose countdowns are over and that are younger, it is the one that left first.
    """
    return next((guest for guest in overdue if rows.age(guest) > rows.age(s)), None)


def private_work(rows: RowTable, pages: PageTable, s: int) -> int:
    """Return the work that preempting ``s`` throws away: bytes of parameters that its tokens have to pass again.

    Leading pages that other sequences list stay, and ``s`` would find them again.
    """
    shared = 0
    for page in range(rows.paged[s]):
        if any(pages.references(handle) == 1 for handle in rows.page(s, page)):
            break
        shared += 1
    kept = shared * rows.page_size
    return (rows.computed[s] - min(rows.computed[s], kept)) * max(rows.cost_compute[s], 1)


class PageCommitments:
    """Page commitments: slots, by arena, that running sequences will still take for prompts in progress.

    A prompt takes its pages chunk by chunk. If only pages taken so far counted, several long prompts would start side by
    side, meet in the middle and preempt one another; so a new sequence must fit beside the commitments. Answers are not
    committed: most end long before their limit, and an occasional preemption costs less than memory that stays empty.
    """

    def __init__(self, page_size: int, memory: WorkerMemory) -> None:
        self._page_size, self._memory = page_size, memory
        self.slots: dict[str, int] = {}
        self.bytes: dict[str, int] = {}  # the same as bytes by account, if accounts have caps

    def beside(self, more: Mapping[str, int]) -> dict[str, int]:
        """Return the slots of these and ``more``."""
        return {arena: self.slots.get(arena, 0) + more.get(arena, 0) for arena in (*self.slots, *more)}

    def add(self, rows: RowTable, s: int) -> None:
        """Add what the prompt of ``s`` has not taken yet."""
        local: LocalRoute = rows.route[s]
        unplanned = rows.known[s] - rows.planned[s]
        tokens = rows.known[s] if unplanned > 1 else rows.planned[s]
        if local.spans and (pages := -(-tokens // self._page_size) - rows.paged[s]) > 0:
            for span in local.kv:
                self.slots[span.arena] = self.slots.get(span.arena, 0) + pages * span.layers
            if self._memory.capped:
                taken = pages * self._memory.page_bytes(local.kv)
                self.bytes[rows.tenant[s]] = self.bytes.get(rows.tenant[s], 0) + taken
