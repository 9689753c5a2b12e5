"""Whose KV moves next after a drop or a restore: shortest remaining stall first, in rounds that the peers have room for.

Sequences that began before the change are *stale*: of the layers that other members compute now their KV is on the wrong
worker, and they pause until it has moved (KunServe, KV exchange). The paper says nothing of their order; shortest remaining
stall first gives the least sum of stalls on one link (Smith 1956). A sequence moves once all pages that it needs at its
peers are free there; what fits nowhere while nothing moves or runs, and what a dead peer had, is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

AT_ONCE = 8  # sequences that move at a time (public code of the paper)
SMALL = 64 << 20  # bytes: as many more as have so little together, for each waits a few sweeps whatever it has


@dataclass(frozen=True, slots=True)
class StaleSequence:
    """``transfers``: bytes from worker to worker; ``pages``: that it needs at the workers that it moves to."""

    request: str
    transfers: Mapping[tuple[str, str], int]
    pages: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """All that it moves."""
        return sum(self.transfers.values())

    def stall(self, bandwidth: Callable[[str, str], float]) -> float:
        """Seconds that its own exchange takes at least, links working side by side."""
        return max([size / bandwidth(*link) for link, size in self.transfers.items()], default=0.0)


class ExchangeOrder:
    """The stale sequences of one change. ``bandwidth``: of a link, bytes per second."""

    def __init__(self, bandwidth: Callable[[str, str], float], at_once: int = AT_ONCE) -> None:
        self._bandwidth, self._at_once = bandwidth, at_once
        self._waiting: dict[str, tuple[float, StaleSequence]] = {}
        self.moving: dict[str, StaleSequence] = {}

    def add(self, sequence: StaleSequence) -> None:
        self._waiting[sequence.request] = sequence.stall(self._bandwidth), sequence

    def next(self, free: Mapping[str, int]) -> list[StaleSequence]:
        """Those that begin to move now, in order. ``free``: pages at each worker, without those that moving ones have."""
        left, found = dict(free), list[StaleSequence]()
        under_way = sum(sequence.nbytes for sequence in self.moving.values())
        for _, sequence in sorted(self._waiting.values(), key=lambda one: (one[0], one[1].request)):
            if len(self.moving) >= self._at_once and under_way + sequence.nbytes > SMALL:
                break
            if all(left.get(worker, 0) >= count for worker, count in sequence.pages.items()):
                for worker, count in sequence.pages.items():
                    left[worker] -= count
                del self._waiting[sequence.request]
                self.moving[sequence.request] = sequence
                under_way += sequence.nbytes
                found.append(sequence)
        return found

    def stuck(self) -> StaleSequence | None:
        """For when ``next`` finds nobody and nothing runs that could make room: the one with the longest stall, which is to
        be computed again, so that others have the memory that it holds."""
        if self.moving or not self._waiting:
            return None
        _, found = max(self._waiting.values(), key=lambda one: (one[0], one[1].request))
        self.done(found.request)
        return found

    def done(self, request: str) -> None:
        """It has moved, or is gone."""
        self._waiting.pop(request, None)
        self.moving.pop(request, None)

    def lost(self, worker: str) -> list[StaleSequence]:
        """A member died: those whose KV was to come from it or to go there are to be computed again."""
        everybody = [*self.moving.values(), *(sequence for _, sequence in self._waiting.values())]
        found = [one for one in everybody if any(worker in link for link in one.transfers)]
        for one in found:
            self.done(one.request)
        return found

    @property
    def requests(self) -> list[str]:
        """That move, or wait for their turn."""
        return [*self.moving, *self._waiting]

    @property
    def left(self) -> int:
        """Sequences that have not moved."""
        return len(self._waiting) + len(self.moving)
