"""How many tokens the worker's sweeps had, for the histogram of ``/metrics``. One addition and a look-up a sweep."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SweepSizes:
    """Counts of this worker's life."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._tokens = 0

    def note(self, tokens: int) -> None:
        """A sweep has run."""
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        self._tokens += tokens

    def counters(self) -> dict[str, float]:
        """``sweeps_up_to_N``: sweeps of at most N tokens that no smaller bound counts; ``sweep_tokens``: all together."""
        bounds = [*map(str, BOUNDS), "inf"]
        made = {f"sweeps_up_to_{bound}": float(count) for bound, count in zip(bounds, self._counts, strict=True)}
        return {**made, "sweep_tokens": float(self._tokens)}
