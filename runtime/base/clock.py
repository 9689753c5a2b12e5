"""Clocks: the event loop's, and a manual one for tests, in which only the test moves time; and checked durations.

The protocol is transport's (``transport/clock.py``), for its links ask the same clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import numbers
from collections.abc import Callable, Iterable
from typing import Any

from ...transport.clock import Clock as Clock
from ...transport.clock import Timer as Timer

LONGEST = 86400.0  # seconds that anything is waited for


def seconds(name: str, value: Any) -> float:
    """Return a duration that the application gave as parameter ``name``, at most LONGEST. Raises TypeError for what is no
    number, ValueError for what is less than 0 or NaN.
    """
    remedy = f"give seconds, 0 or more, such as 30.0; math.inf waits as long as can be ({LONGEST:g} s)"
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no number; {remedy}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name}={value!r} is no time; {remedy}")
    return min(number, LONGEST)


async def first_within(clock: Clock, seconds: float, waits: Iterable[asyncio.Future[Any]]) -> None:
    """Until one of the futures is done or that much time of ``clock`` has passed. Cancels nothing, raises nothing."""
    bound: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.now() + seconds, lambda: None if bound.done() else bound.set_result(None))
    try:
        await asyncio.wait([*waits, bound], return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        bound.cancel()


class LoopClock:
    """The running event loop's time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(when, callback)


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Time for tests. ``advance`` runs what falls due, in order; callbacks may add more."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._due: list[tuple[float, int, ManualTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = ManualTimer(callback)
        heapq.heappush(self._due, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, timer = heapq.heappop(self._due)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Act as a stalled loop: time passes at once, then everything that fell due meanwhile runs, late."""
        self._now += seconds
        late, self._due = self._due, []
        keep = [entry for entry in late if entry[0] > self._now]
        for entry in keep:
            heapq.heappush(self._due, entry)
        for _, _, timer in sorted(entry for entry in late if entry[0] <= self._now):
            if timer.callback is not None:
                timer.callback()
