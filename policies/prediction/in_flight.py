"""Requests in flight to a worker: sent by a dispatcher, and not known here to have reached the worker's machine.

Forecasts include them. Otherwise all requests of a burst would be sent to the worker that was free before the first.
"""

from __future__ import annotations

from ..sweep.events import Submission

PATIENCE = 5.0  # seconds until a request that was never seen is not expected any more

Attempt = tuple[str, int]  # (request, attempt)


class InFlight:
    """The requests in flight to one worker.

    Sending and arrival may be reported in any order. ``now``: seconds on a clock.
    """

    def __init__(self) -> None:
        self._placed: dict[Attempt, tuple[Submission, float]] = {}  # in the order in which they were sent
        self._shown: dict[Attempt, float] = {}  # arrived lately; the oldest first

    def place(self, submission: Submission, now: float) -> None:
        """Record a request that is sent now."""
        self._expire(now)
        key = (submission.request, submission.attempt)
        if key not in self._shown:
            self._placed[key] = (submission, now)

    def show(self, request: str, attempt: int, now: float) -> None:
        """Record that the machine has the request."""
        key = (request, attempt)
        self._placed.pop(key, None)
        self._shown.pop(key, None)
        self._shown[key] = now

    def leave(self, request: str) -> None:
        """Forget earlier attempts of a request: a new one is made, or it is no longer wanted."""
        for key in [key for key in self._placed if key[0] == request]:
            del self._placed[key]

    def forget(self) -> None:
        """Forget everything, because the worker's life is over."""
        self._placed.clear()
        self._shown.clear()

    def waiting(self, now: float) -> list[Submission]:
        """Return the requests still to arrive, in the order in which they were sent."""
        self._expire(now)
        return [submission for submission, _ in self._placed.values()]

    def _expire(self, now: float) -> None:
        for key in [key for key, (_, at) in self._placed.items() if at + PATIENCE <= now]:
            del self._placed[key]
        while self._shown:
            oldest = next(iter(self._shown))
            if self._shown[oldest] + PATIENCE > now:
                break
            del self._shown[oldest]
