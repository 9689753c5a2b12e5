"""Load retries of an offline job, before its requests fail with the reason of the failed load.

A disk that is away for a minute ends no job of a day; a damaged checkpoint does not keep one until its time is over. Pure.
"""

from __future__ import annotations

MOST = 6  # failures in a row; with the waits between them that takes two and a half minutes


class LoadTries:
    """The load retries of one model."""

    def __init__(self) -> None:
        self._failed = 0  # failures in a row
        self._last = 0  # number of the last failure

    def failed(self, failure: int, wait: float) -> float | None:
        """Record a failure; return the seconds until the retry, doubling each time, or None: the request fails.

        failure: its number, as several requests may meet the same one. wait: seconds, the first time.
        """
        if failure != self._last:
            self._failed, self._last = self._failed + 1, failure
        return wait * 2.0 ** (self._failed - 1) if self._failed < MOST else None

    def loaded(self) -> None:
        """Note that a request was answered."""
        self._failed = 0
