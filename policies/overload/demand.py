"""KV demand against memory: which instances throttle, and how many pages of KV they lack.

After KunServe (parameter-centric memory management), its demand metric and the thresholds of its public code: an instance
throttles if 95 % of its KV memory is in use and the waiting requests need at least as many pages as are free. It is read
every ``PERIOD``; a sliding window of ``READINGS`` keeps the usage and its rate of change. An instance is a worker with a
whole model, or a group of workers in one pipeline, where the fullest stage counts. Pure: times come in with the readings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PERIOD = 0.1  # seconds between two readings
READINGS = 30  # number of readings in a window
THROTTLED = 0.95  # fraction of KV memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReading:
    """The KV of one instance at one time, in pages: ``page_size`` tokens on all layers."""

    used: int  # pages used by sequences; pages that are only cached count as free
    total: int
    head: int = 0  # pages that the first in the queue needs to start
    waiting: int = 0  # pages that all waiting requests need, including the first

    @property
    def free(self) -> int:
        return max(self.total - self.used, 0)

    @property
    def usage(self) -> float:
        """The used fraction of the memory; an instance without memory is full."""
        return self.used / self.total if self.total else 1.0

    @property
    def demand(self) -> int:
        """The pages of running requests and of the first in the queue, as Llumnix counts them."""
        return self.used + self.head

    @property
    def lacking(self) -> int:
        """The pages that waiting requests need and that are not free."""
        return max(self.waiting - self.free, 0)


def of_stages(stages: Sequence[DemandReading]) -> DemandReading:
    """Return the reading of a pipeline, in pages of all layers, from its workers' readings in pages of their own layers.

    The fullest stage counts; the stage with the fewest pages limits the total. Requests wait at the first stage.
    """
    total = min(stage.total for stage in stages)
    used = max(math.ceil(stage.usage * total) for stage in stages)
    return DemandReading(used=used, total=total, head=stages[0].head, waiting=sum(stage.waiting for stage in stages))


class UsageWindow:
    """The last ``READINGS`` usages of an instance or of a cluster."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=READINGS)

    def add(self, at: float, usage: float) -> None:
        self._seen.append((at, usage))

    @property
    def rate(self) -> float:
        """The change of usage per second, from the first reading to the last; 0 before there are two."""
        (since, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - since) if now > since else 0.0

    def expected(self, horizon: float) -> float:
        """Return the usage in ``horizon`` seconds at the present rate. A window that is not full yet predicts no change."""
        last = self._seen[-1][1]
        return last + self.rate * horizon if len(self._seen) == READINGS else last


class DemandMonitor:
    """A window for each instance.

    horizon: seconds for which usage is extrapolated, so that an instance counts as throttling when it is about to; 0: only
    when it does. throttled: fraction of memory.
    """

    def __init__(self, *, throttled: float = THROTTLED, horizon: float = 0.0) -> None:
        self._throttled, self._horizon = throttled, horizon
        self._windows: dict[str, UsageWindow] = {}
        self._last: dict[str, DemandReading] = {}

    def read(self, at: float, readings: Mapping[str, DemandReading]) -> None:
        """Record the readings of all instances at one time. Absent instances are forgotten."""
        self._windows = {name: self._windows.get(name) or UsageWindow() for name in readings}
        self._last = dict(readings)
        for name, reading in readings.items():
            self._windows[name].add(at, reading.usage)

    def throttling(self) -> list[str]:
        """Return the instances that throttle, or are about to."""
        return [name for name in self._last if self._throttles(name)]

    def _throttles(self, name: str) -> bool:
        reading = self._last[name]
        if reading.usage >= self._throttled and reading.waiting >= reading.free:
            return True
        return self._horizon > 0 and self._windows[name].expected(self._horizon) >= self._throttled

    def lacking(self) -> dict[str, int]:
        """Return the pages that each instance lacks; their sum is R, the amount to free.

        Requests that wait at one instance cannot use what is free at another. An instance without free pages lacks at
        least one, since its running requests grow.
        """
        return {name: max(reading.lacking, int(not reading.free)) for name, reading in self._last.items()}

    @property
    def pending(self) -> bool:
        """True if requests wait for memory anywhere. Requests that wait only for the next sweep have room."""
        return any(reading.lacking for reading in self._last.values())
