"""Requests on their way to a worker: sent there by a dispatcher, and not in its machine yet as far as is known here.

A forecast plays them, too. Otherwise all requests of a burst would be sent to the worker that was free before the first.
"""

from __future__ import annotations

from ..sweep.events import Submission

PATIENCE = 5.0  # seconds after which a request that was never seen is not expected any more

Attempt = tuple[str, int]  # request, attempt


class InFlight:
    """Of one worker. That a request was sent and that it has come is heard in any order. ``now``: seconds on a clock."""

    def __init__(self) -> None:
        self._placed: dict[Attempt, tuple[Submission, float]] = {}  # in the order in which they were sent
        self._shown: dict[Attempt, float] = {}  # came lately; the oldest first

    def place(self, submission: Submission, now: float) -> None:
        """It is sent now."""
        self._expire(now)
        key = (submission.request, submission.attempt)
        if key not in self._shown:
            self._placed[key] = (submission, now)

    def show(self, request: str, attempt: int, now: float) -> None:
        """The machine has it."""
        key = (request, attempt)
        self._placed.pop(key, None)
        self._shown.pop(key, None)
        self._shown[key] = now

    def leave(self, request: str) -> None:
        """No attempt that was sent so far is still to come: another one is made, or nobody wants it any more."""
        for key in [key for key in self._placed if key[0] == request]:
            del self._placed[key]

    def forget(self) -> None:
        """The worker's life is over: nothing comes there any more."""
        self._placed.clear()
        self._shown.clear()

    def waiting(self, now: float) -> list[Submission]:
        """Those that are still to come, in the order in which they were sent."""
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
