"""Histogram in the form of Prometheus. Plain numbers, so that observing costs a few additions. Standard library only."""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        made, running = [], 0
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            running += count
            made.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return made
