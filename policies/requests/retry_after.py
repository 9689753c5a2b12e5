"""Retry after: the forecast of when a place will be free, which a refused client gets.

Owns the rate at which requests ended lately. The forecast inverts Little's law: with ``ahead`` requests before it and
places becoming free at the measured rate, a new request's turn comes after ``ahead / rate`` seconds.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64  # number of ends over which the rate is measured
SHORTEST, LONGEST = 1.0, 120.0  # seconds; common clients ignore waits of more than two minutes


class CompletionRate:
    """The rate at which requests ended lately (see the module)."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=WINDOW)

    def ended(self, now: float) -> None:
        """Record that a request is over, whatever its outcome."""
        self._ends.append(now)

    def starts_in(self, place: int, now: float) -> float | None:
        """Return the seconds until the waiting request at this place begins; None while the rate is unknown."""
        return None if len(self._ends) < 2 or now <= self._ends[0] else place * (now - self._ends[0]) / len(self._ends)

    def forecast(self, ahead: int, now: float) -> float:
        """Return the seconds until ``ahead`` more requests will have ended; ``SHORTEST`` while the rate is unknown."""
        if len(self._ends) < 2 or now <= self._ends[0]:
            return SHORTEST
        pace = len(self._ends) / (now - self._ends[0])  # measured up to now, so that it falls while nothing ends
        return min(LONGEST, max(SHORTEST, ahead / pace))
