"""Starts of urgent sequences: a class that rises with the wait, and rows and pages taken from lower classes.

An urgent sequence that is next to start and finds no row, or no pages for its prompt, takes those of a running sequence of a
lower class, between two sweeps. The victim is of the lowest class there, and of those the one with the latest finish tag.
It returns to its place in the queue; its full pages stay in the prefix cache while memory lasts, else they are computed
again. Its tokens stay the same.

Shares between accounts come first. Which account is next is decided as ever; and another account only loses a row if it was
given more, or by a request that goes after all other work. One sequence is exempt (``preemption.py``), and each gives
its row at most ``MOST_YIELDS`` times, so that all end.
"""

from __future__ import annotations

from ..requests.urgency import URGENT, service_class
from .batch_builder import BatchBuilder
from .columns import MOST_YIELDS, Status
from .fitting import Fitting
from .parts import Parts
from .preemption import ages
from .sequences import Sequences


class UrgentStarts:
    """The procedures of one worker (see the module). They keep nothing between two plans."""

    def __init__(self, parts: Parts, sequences: Sequences, fitting: Fitting) -> None:
        self._parts = parts
        self._sequences = sequences
        self._fitting = fitting
        self._rows = parts.rows

    def rise(self, now: float) -> None:
        """Let sequences rise that have waited long enough. Without a free row, none starts, and so none has to rise."""
        parts = self._parts
        rows = self._rows
        ageing = self._parts.queue.ageing
        while rows.free_rows and (s := ageing.due(now)) >= 0:
            since = ageing.since(s)
            parts.dequeue(s)
            rows.rise(s, since + ageing.seconds)
            parts.enqueue(s)
            parts.outgoing.count("class_rises")

    def make_room(self, batch: BatchBuilder) -> None:
        """Take a row, or pages, for the urgent sequence that is next to start, if it lacks them."""
        parts = self._parts
        rows = self._rows
        queue = self._parts.queue
        if not parts.config.tier_preemption or not self.waiting(parts):
            return
        self._fitting.begin()
        while (s := queue.first(batch.capped)) >= 0 and _asked_urgent(parts, s):
            found = self._fitting.examine(s, batch)
            if found is None:
                continue
            awaited = parts.page_pins.awaited(rows.age(s)) if len(parts.page_pins) else {}
            if rows.free_rows and self._fitting.fits(s, found, awaited):
                return
            if rows.leaving or parts.leases.revoked or (victim := self._victim(s)) < 0:
                return
            rows.give_row(victim)
            parts.outgoing.count("urgent_preemptions")
            self._sequences.preempt(victim, urgent=True)
            if rows.status[victim] == Status.LEAVING:
                return  # its row is free when the open plan with it has ended

    @staticmethod
    def waiting(parts: Parts) -> bool:
        """Return whether a sequence waits that may take rows of others."""
        return parts.config.tier_preemption and parts.queue.ageing.waits(URGENT) > 0

    def _victim(self, s: int) -> int:
        """Return the running sequence that gives its row to ``s``; -1: none does."""
        rows, queue = self._rows, self._parts.queue
        running = queue.running
        order = ages(rows, {s, *running})
        exempt = min(order, key=order.__getitem__)
        mine, account = queue.rank(rows.key(s), rows.tenant[s]), rows.tenant[s]
        found = [
            v for v in running
            if v != exempt and rows.yielded[v] < MOST_YIELDS and service_class(rows.priority[v]) > URGENT
            and (rows.tenant[v] == account or queue.rank(rows.key(v), rows.tenant[v]) > mine)
        ]  # fmt: skip
        return max(found, key=self._loses, default=-1)

    def _loses(self, v: int) -> tuple[int, tuple[int, int], int, tuple[int, float, int]]:
        """Return the order in which sequences give their rows: class, account, finish tag, then the youngest."""
        rows, queue = self._rows, self._parts.queue
        key = rows.key(v)
        account = rows.tenant[v]
        of = rows.submission[v]
        total = min(of.max_length, of.prompt_length + of.expected) if of.expected else of.max_length
        tag = queue.finish_tag(key, account, rows.tier[v], max(0, total - rows.charged[v]))
        return service_class(key[0]), queue.rank(key, account), tag, key


def _asked_urgent(parts: Parts, s: int) -> bool:
    return service_class(parts.rows.submission[s].priority) == URGENT
