"""Retry after: when a place will be free, which a refused client is told to wait for.

Owns the pace at which requests ended lately. The forecast is Little's law turned round: with ``ahead`` requests before it
and places becoming free at the measured pace, a newcomer's turn comes after ``ahead / pace`` seconds.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64  # ends that the pace is measured over
SHORTEST, LONGEST = 1.0, 120.0  # seconds; common clients ignore anything longer than two minutes


class Pace:
    """See the module."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=WINDOW)

    def ended(self, now: float) -> None:
        """A request is over, whatever its outcome."""
        self._ends.append(now)

    def starts_in(self, place: int, now: float) -> float | None:
        """Seconds until whoever has this place among those that wait begins; None while the pace is not known."""
        return None if len(self._ends) < 2 or now <= self._ends[0] else place * (now - self._ends[0]) / len(self._ends)

    def forecast(self, ahead: int, now: float) -> float:
        """Seconds until ``ahead`` more requests will have ended; ``SHORTEST`` while nothing is known."""
        if len(self._ends) < 2 or now <= self._ends[0]:
            return SHORTEST
        pace = len(self._ends) / (now - self._ends[0])  # up to now, so that it falls while nothing ends
        return min(LONGEST, max(SHORTEST, ahead / pace))
