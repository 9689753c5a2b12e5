"""The growth of running sequences: the most KV they will hold together, by estimates of their lengths.

On average a sequence holds half of its answer, if sequences are of all ages. Long answers that start together are not:
they hold next to nothing at first, and all of their length at the same time. So long ones are simulated (as LightLLM's
"Past-Future scheduler" does): at each end of a sequence, the others hold what they hold now and a token more for each
step. A machine of events; n long sequences cost O(n).
"""

from __future__ import annotations

from bisect import bisect_left, insort

LATE = 0.1  # fraction of its tokens still expected of a sequence that has outrun its estimate


class Growth:
    """Long running sequences, each growing by one position in a step."""

    __slots__ = ("_ends", "_known", "_peak", "_sum")

    def __init__(self) -> None:
        # (the step after which it ends, request, positions less steps), ascending
        self._ends: list[tuple[int, int, int]] = []
        self._known: dict[int, tuple[int, int, int]] = {}
        self._sum = 0  # sum of positions less steps
        self._peak: int | None = 0

    def begin(self, request: int, step: int, positions: int, more: int) -> None:
        """Add a sequence with ``positions`` at ``step`` that will grow by ``more``."""
        entry = (step + more, request, positions - step)
        insort(self._ends, entry)
        self._known[request] = entry
        self._sum += entry[2]
        self._peak = None

    def end(self, request: int) -> None:
        """Remove a sequence. No-op if it is unknown."""
        if (entry := self._known.pop(request, None)) is not None:
            del self._ends[bisect_left(self._ends, entry)]
            self._sum -= entry[2]
            self._peak = None

    def __len__(self) -> int:
        return len(self._ends)

    def now(self, step: int) -> int:
        """Return the positions that they hold."""
        return self._sum + step * len(self._ends)

    def peak(self, step: int) -> int:
        """Return the most positions that they will hold together."""
        while self._ends and self._ends[0][0] <= step:
            _, request, base = self._ends[0]
            self.end(request)
            self.begin(request, step, base + step, max(round(LATE * (base + step)), 1))
        if self._peak is None:
            self._peak = _highest(self._ends)
        return self._peak

    def with_one_more(self, step: int, positions: int, more: int) -> int:
        """Return the same as if another sequence started now."""
        self.peak(step)
        entry = (step + more, -1, positions - step)
        at = bisect_left(self._ends, entry)
        return _highest([*self._ends[:at], entry, *self._ends[at:]])


def _highest(ends: list[tuple[int, int, int]]) -> int:
    """Return the most positions at any end, of sequences that have not ended before."""
    bases = running = peak = 0
    for end, _, base in reversed(ends):
        bases, running = bases + base, running + 1
        peak = max(peak, bases + running * end)
    return peak
