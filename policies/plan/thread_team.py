"""How many of a worker's threads compute a call of its kernels: all of them or one, whichever has been faster.

Small calls read weights more than they compute. Where one core takes most of what memory gives, or where others use the
cores too, a second thread brings nothing or holds the first one up. Nobody can know that beforehand, so both are tried:
often where they lie close together, seldom where one is far ahead, so that trying costs a fixed share of the time at most.
No result depends on it. Large calls, and those of a worker with many cores, are worth all threads everywhere, and a try
with one would be a pause that clients see.
"""

from __future__ import annotations

MOST_THREADS, MOST_TOKENS = 4, 16  # beyond, there is no choice
TRIES = 4  # calls in a row with the number that is not in use
HOPELESS = 1.5  # times as slow: one call is enough
COST = 0.005  # share of the time that is lost by trying, at most
SOONEST, LATEST = 32, 8192  # calls between two tries
WEIGHT = 1 / 16  # of the last call in the mean of those in use
WORTH = 1.02  # times as fast must all threads be: else the other cores are left to others


class _Size:
    """Calls of one size. ``one``, ``every``: mean seconds with one thread and with all of them, 0 before any."""

    __slots__ = ("alone", "every", "left", "one", "tried", "tries")

    def __init__(self) -> None:
        self.alone = False  # in use
        self.one = self.every = 0.0
        self.left = TRIES  # calls until the other number is tried
        self.tries, self.tried = 0, 0.0  # calls of the try under way, and their seconds


class ThreadTeam:
    """Of one run, which takes about as long whenever it gets as many tokens. ``threads``: the worker's. Time comes in."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._sizes: dict[int, _Size] = {}

    def choose(self, tokens: int) -> int:
        """Threads for a call of so many tokens. Tell how long it ``took``."""
        if not self._any(tokens):
            return self._threads
        size = self._size(tokens)
        return 1 if size.alone == (size.left > 0) else self._threads

    def took(self, tokens: int, threads: int, seconds: float) -> None:
        """A call is over."""
        if not self._any(tokens):
            return
        size = self._size(tokens)
        if (threads == 1) != size.alone:
            self._tried(size, seconds)
            return
        if size.alone:
            size.one += (seconds - size.one) * (WEIGHT if size.one else 1.0)
        else:
            size.every += (seconds - size.every) * (WEIGHT if size.every else 1.0)
        size.left -= 1
        if size.one and size.every and size.left > SOONEST and self._alone(size) != size.alone:
            size.left = SOONEST  # what is in use has become slower than the other was

    def _tried(self, size: _Size, seconds: float) -> None:
        size.tries += 1
        size.tried += seconds
        if size.tries < TRIES and seconds < HOPELESS * (size.one if size.alone else size.every):
            return
        mean = size.tried / size.tries
        if size.alone:
            size.every = (size.every + mean) / 2.0 if size.every else mean
        else:
            size.one = (size.one + mean) / 2.0 if size.one else mean
        size.tries, size.tried = 0, 0.0
        size.alone = self._alone(size)
        slower, faster = max(size.one, size.every), max(min(size.one, size.every), 1e-9)
        size.left = min(max(SOONEST, int(TRIES * (slower / faster - 1.0) / COST)), LATEST)

    @staticmethod
    def _alone(size: _Size) -> bool:
        return size.one <= size.every * WORTH

    def _any(self, tokens: int) -> bool:
        """Whether there is a choice."""
        return 1 < self._threads <= MOST_THREADS and tokens <= MOST_TOKENS

    def _size(self, tokens: int) -> _Size:
        if tokens not in self._sizes:
            self._sizes[tokens] = _Size()
        return self._sizes[tokens]
