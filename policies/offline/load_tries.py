"""Load tries: how often an offline job has its model loaded that fails to load, before its requests fail with the reason.

A disk that is away for a minute ends no job of a day; a damaged checkpoint does not keep one until its time is over. Pure.
"""

from __future__ import annotations

MOST = 6  # that fail one after the other; with the waits between them that takes two and a half minutes


class LoadTries:
    """Of one model."""

    def __init__(self) -> None:
        self._failed = 0  # one after the other
        self._last = 0  # number of the last failure

    def failed(self, failure: int, wait: float) -> float | None:
        """A request has met a failure: seconds until it is tried again, twice as long each time; None: it fails with it.
        ``failure``: its number, as several may meet the same one; ``wait``: seconds, the first time."""
        if failure != self._last:
            self._failed, self._last = self._failed + 1, failure
        return wait * 2.0 ** (self._failed - 1) if self._failed < MOST else None

    def loaded(self) -> None:
        """A request was answered."""
        self._failed = 0
