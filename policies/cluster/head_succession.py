"""The succession of heads: which is obeyed, when a member looks for another, and when a head doubts itself.

Heads of one cluster are numbered by epoch. Members obey the highest epoch that they have heard of, so no member ever obeys
two heads, whatever their clocks say. A head that loses most of its members at once has more likely lost its own way to them,
and declares none down. Pure: time comes in as an argument.
"""

from __future__ import annotations

FIRST_REDIAL = 0.05  # seconds from the loss of a head until it is looked for
LAST_REDIAL = 0.5  # seconds between later attempts, at most
LEAST_MISSED = 2  # members that must be missing at once before a head doubts itself


def next_epoch(unix: float, highest: int) -> int:
    """Return the epoch of a new head at that Unix time. ``highest``: the one that its starter has heard of, or 0."""
    return max(int(unix), highest + 1, 1)


def redial_delay(tries: int) -> float:
    """Return the seconds before the next attempt to reach a head, after that many attempts."""
    return float(min(FIRST_REDIAL * 2.0 ** min(tries, 16), LAST_REDIAL))


def doubts(missing: int, members: int) -> bool:
    """Return True if a head that misses that many of its members should blame itself."""
    return missing >= LEAST_MISSED and 2 * missing > members


class SilenceCount:
    """Seconds without a sign of one peer, counted only while the one who counts was itself awake."""

    __slots__ = ("_last", "seconds")

    def __init__(self, heard: float | None = None) -> None:
        self._last = heard
        self.seconds = 0.0

    def add(self, heard: float | None, step: float) -> float:
        """Count ``step`` more seconds, from 0 if ``heard`` (when the last sign came) has moved; return the total."""
        if heard != self._last:
            self._last = heard
            self.seconds = 0.0
        self.seconds += step
        return self.seconds


class AwakeTime:
    """Time as far as this process was awake: a check that comes late counts as little later than it should."""

    __slots__ = ("_checked", "_period")

    def __init__(self, now: float, period: float, factor: float = 1.5) -> None:
        self._checked, self._period = now, period * factor

    def step(self, now: float) -> float:
        """Return the seconds to count since the last check."""
        passed = now - self._checked
        self._checked = now
        return min(passed, self._period)
