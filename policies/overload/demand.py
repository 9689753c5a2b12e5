"""KV demand against memory: which instances throttle, and how many pages of KV they lack.

After KunServe (parameter-centric memory management), its demand metric and the thresholds of its public code: an instance
throttles where 95 % of its KV memory is in use and what waits needs at least as many pages as are free. It is read every
``PERIOD``; a sliding window of ``READINGS`` keeps the usage and how fast it changes. An instance is a worker with a whole
model, or a group of workers in one pipeline; of a group the fullest stage counts.

Pure: times come in with the readings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PERIOD = 0.1  # seconds between two readings
READINGS = 30  # that a window keeps
THROTTLED = 0.95  # share of KV memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReading:
    """The KV of one instance at one time, in pages: ``page_size`` tokens on all layers."""

    used: int  # by sequences; pages that are only cached count as free
    total: int
    head: int = 0  # that the first of the queue needs to start
    waiting: int = 0  # that all that waits needs, the first included

    @property
    def free(self) -> int:
        return max(self.total - self.used, 0)

    @property
    def usage(self) -> float:
        """Share of the memory; an instance without memory is full."""
        return self.used / self.total if self.total else 1.0

    @property
    def demand(self) -> int:
        """Of what runs and of the head of the line, as Llumnix counts it."""
        return self.used + self.head

    @property
    def lacking(self) -> int:
        """Pages that all that waits needs and that are not free."""
        return max(self.waiting - self.free, 0)


def of_stages(stages: Sequence[DemandReading]) -> DemandReading:
    """The reading of a pipeline, in pages of all layers, from those of its workers, each in pages of the layers that it has:
    the fullest stage counts, and has room for the fewest pages. What waits, waits at the first."""
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
        """By which the usage changes in a second, from the first reading to the last; 0 before there are two."""
        (since, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - since) if now > since else 0.0

    def expected(self, horizon: float) -> float:
        """The usage in so many seconds, if it goes on like this. A window that is not full yet foretells nothing."""
        last = self._seen[-1][1]
        return last + self.rate * horizon if len(self._seen) == READINGS else last


class DemandMonitor:
    """A window for each instance. ``horizon``: seconds for which usage is extrapolated, so that an instance counts as
    throttling already when it is about to; 0: only when it does. ``throttled``: share of memory."""

    def __init__(self, *, throttled: float = THROTTLED, horizon: float = 0.0) -> None:
        self._throttled, self._horizon = throttled, horizon
        self._windows: dict[str, UsageWindow] = {}
        self._last: dict[str, DemandReading] = {}

    def read(self, at: float, readings: Mapping[str, DemandReading]) -> None:
        """Of all instances, at one time. Those that are not there any more are forgotten."""
        self._windows = {name: self._windows.get(name) or UsageWindow() for name in readings}
        self._last = dict(readings)
        for name, reading in readings.items():
            self._windows[name].add(at, reading.usage)

    def throttling(self) -> list[str]:
        """Instances that throttle, or are about to."""
        return [name for name in self._last if self._throttles(name)]

    def _throttles(self, name: str) -> bool:
        reading = self._last[name]
        if reading.usage >= self._throttled and reading.waiting >= reading.free:
            return True
        return self._horizon > 0 and self._windows[name].expected(self._horizon) >= self._throttled

    def lacking(self) -> dict[str, int]:
        """Pages that each instance lacks, whose sum is R, the amount to free: what waits at one cannot use what is free at
        another. At least one where nothing is free, for what runs there grows."""
        return {name: max(reading.lacking, int(not reading.free)) for name, reading in self._last.items()}

    @property
    def pending(self) -> bool:
        """Whether anything waits anywhere for memory. What waits for the next sweep, as all that comes does, has room."""
        return any(reading.lacking for reading in self._last.values())
