"""How much KV sequences will hold at most that run already, by the estimates of their lengths.

Half of an answer is what a sequence holds in the mean, if sequences are of all ages. Long answers that start together are
not: they hold next to nothing at first, and all of their length at the same time. So long ones are played forward (as
LightLLM's "Past-Future scheduler" does): at each end of a sequence, those that still run hold what they hold now and a
token more for each step. A machine of events; n long sequences cost O(n).
"""

from __future__ import annotations

from bisect import bisect_left, insort

LATE = 0.1  # of its tokens: how much longer a sequence is expected to run that has outrun its estimate


class Growth:
    """Long sequences that run, each growing by one position in a step."""

    __slots__ = ("_ends", "_known", "_peak", "_sum")

    def __init__(self) -> None:
        # (the step after which it ends, request, positions less steps), ascending
        self._ends: list[tuple[int, int, int]] = []
        self._known: dict[int, tuple[int, int, int]] = {}
        self._sum = 0  # of positions less steps
        self._peak: int | None = 0

    def begin(self, request: int, step: int, positions: int, more: int) -> None:
        """It holds so many positions at ``step``, and will grow by ``more``."""
        entry = (step + more, request, positions - step)
        insort(self._ends, entry)
        self._known[request] = entry
        self._sum += entry[2]
        self._peak = None

    def end(self, request: int) -> None:
        """It runs no more; nothing happens where it is none of these."""
        if (entry := self._known.pop(request, None)) is not None:
            del self._ends[bisect_left(self._ends, entry)]
            self._sum -= entry[2]
            self._peak = None

    def __len__(self) -> int:
        return len(self._ends)

    def now(self, step: int) -> int:
        """Positions that they hold."""
        return self._sum + step * len(self._ends)

    def peak(self, step: int) -> int:
        """Most positions that they will hold together."""
        while self._ends and self._ends[0][0] <= step:
            _, request, base = self._ends[0]
            self.end(request)
            self.begin(request, step, base + step, max(round(LATE * (base + step)), 1))
        if self._peak is None:
            self._peak = _highest(self._ends)
        return self._peak

    def with_one_more(self, step: int, positions: int, more: int) -> int:
        """The same, if another one started now."""
        self.peak(step)
        entry = (step + more, -1, positions - step)
        at = bisect_left(self._ends, entry)
        return _highest([*self._ends[:at], entry, *self._ends[at:]])


def _highest(ends: list[tuple[int, int, int]]) -> int:
    """Most positions at any end, of those that have not ended before."""
    bases = running = most = 0
    for end, _, base in reversed(ends):
        bases, running = bases + base, running + 1
        most = max(most, bases + running * end)
    return most
