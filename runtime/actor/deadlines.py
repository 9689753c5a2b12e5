"""The deadlines of all open calls of a node behind one timer.

Owns the order in which they fall due. A timer for each call would cost more than the call: almost none ever fires. Nearly
all have the same patience, so that each falls due after those before it: they stand in a line, which loses its head as the
first calls are answered. Only what falls due earlier than the last of the line goes into a heap. What is over stays until it
comes up, or until there is more of it than of what is open.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from typing import Any

from ...transport.clock import Clock, Timer
from ..base.address import Address
from ..base.errors import DeadlineExceeded

_FEW = 512  # entries that are over and not worth a sweep
_Entry = tuple[float, asyncio.Future[Any], Address, str, float]


class Deadlines:
    """Sets DeadlineExceeded on futures that are not done in time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: deque[_Entry] = deque()
        self._heap: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()
        self._open = 0  # calls that are not settled
        self._timer: Timer | None = None
        self._armed = float("inf")  # when the timer fires

    def add(self, when: float, future: asyncio.Future[Any], target: Address, endpoint: str, patience: float) -> None:
        line, entry = self._line, (when, future, target, endpoint, patience)
        if not line or when >= line[-1][0]:
            line.append(entry)
        else:
            heapq.heappush(self._heap, (when, next(self._order), entry))
        self._open += 1
        if when < self._armed:
            self._arm(when)

    def settled(self) -> None:
        """Note that an added future is done and has been awaited."""
        line = self._line
        while line and line[0][1].done():
            line.popleft()
        self._open -= 1
        if len(line) + len(self._heap) > 2 * self._open + _FEW:
            self._line = deque([entry for entry in line if not entry[1].done()])
            self._heap = [item for item in self._heap if not item[2][1].done()]
            heapq.heapify(self._heap)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __len__(self) -> int:
        """Return the number of entries, also of finished futures."""
        return len(self._line) + len(self._heap)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = self._clock.call_at(when, self._fire)

    def _first(self) -> _Entry | None:
        line, heap = self._line, self._heap
        if heap and not (line and line[0][0] <= heap[0][0]):
            return heap[0][2]
        return line[0] if line else None

    def _fire(self) -> None:
        now = self._clock.now()
        while (first := self._first()) is not None and (first[0] <= now or first[1].done()):
            if self._line and self._line[0] is first:
                self._line.popleft()
            else:
                heapq.heappop(self._heap)
            _, future, target, endpoint, patience = first
            if not future.done():
                future.set_exception(DeadlineExceeded(f"{target}.{endpoint} did not answer within {patience:g} s"))
        self._timer, self._armed = None, float("inf")
        if first is not None:
            self._arm(first[0])
