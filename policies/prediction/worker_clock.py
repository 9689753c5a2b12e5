"""A worker's clock as a predictor on another machine reads it: from the times in its feed, less the shortest way so far.

Monotonic clocks of two machines have nothing in common, and drift apart by some seconds a day. On one machine they are one
clock, and nothing is added. Pure.
"""

from __future__ import annotations

import math

SAME = 1.0  # seconds; clocks that differ by less are one clock, and the difference is the way of the news
EPOCH = 60.0  # seconds; what was measured before the last two epochs counts no more


class WorkerClock:
    """See the module."""

    def __init__(self) -> None:
        self._ahead = self._last = math.inf  # of this machine's clock, at least: in this epoch, and in the one before
        self._since = -math.inf

    def hear(self, at: float, now: float) -> None:
        """Note that news of ``at`` by the worker's clock came at ``now`` by this machine's."""
        if now - self._since > EPOCH:
            self._last, self._ahead = self._ahead, math.inf
            self._since = now
        self._ahead = min(self._ahead, now - at)

    def of_worker(self, now: float) -> float:
        """Return the time by the worker's clock."""
        ahead = min(self._ahead, self._last)
        return now if abs(ahead) < SAME or math.isinf(ahead) else now - ahead
