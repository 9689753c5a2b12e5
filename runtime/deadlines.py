"""The deadlines of all open calls of a node behind one timer.

Owns the order in which they fall due. A timer for each call would cost more than the call: almost none ever fires. So a call
that is over stays in the heap until it comes up, or until more than half of the heap is over.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any

from blockwright.runtime.clock import Clock, Timer
from blockwright.runtime.errors import DeadlineExceeded
from blockwright.runtime.ref import Address

_FEW = 512  # entries that are over and not worth a sweep


class Deadlines:
    """Sets DeadlineExceeded on futures that are not done in time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, asyncio.Future[Any], Address, str, float]] = []
        self._order = itertools.count()
        self._settled = 0  # entries that are over, about
        self._timer: Timer | None = None
        self._armed = float("inf")  # when the timer fires

    def add(self, when: float, future: asyncio.Future[Any], target: Address, endpoint: str, patience: float) -> None:
        heapq.heappush(self._heap, (when, next(self._order), future, target, endpoint, patience))
        if when < self._armed:
            self._arm(when)

    def settled(self) -> None:
        """A future that was added is done, and has been awaited."""
        self._settled += 1
        if self._settled > _FEW and self._settled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._settled = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = self._clock.call_at(when, self._fire)

    def _fire(self) -> None:
        now, heap = self._clock.now(), self._heap
        while heap and (heap[0][0] <= now or heap[0][2].done()):
            _, _, future, target, endpoint, patience = heapq.heappop(heap)
            if not future.done():
                future.set_exception(DeadlineExceeded(f"{target}.{endpoint} did not answer within {patience:g} s"))
        self._timer, self._armed = None, float("inf")
        if heap:
            self._arm(heap[0][0])
