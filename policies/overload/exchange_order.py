"""The order in which KV moves after a drop or a restore: shortest remaining stall first, as far as peers have room.

Sequences that began before the change are *stale*: for the layers that other members compute now, their KV is on the wrong
worker, and they pause until it has moved (KunServe, KV exchange). The paper does not state their order; shortest remaining
stall first gives the least sum of stalls on one link (Smith 1956). A sequence moves once all pages that it needs at its
peers are free there. A sequence that fits nowhere while nothing moves or runs, or whose KV was on a dead peer, is
recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

AT_ONCE = 8  # limit of sequences that move at a time (public code of the paper)
SMALL = 64 << 20  # bytes; more sequences may move if all moving ones together have less: each waits a few sweeps anyway


@dataclass(frozen=True, slots=True)
class StaleSequence:
    """A stale sequence. transfers: bytes from worker to worker. pages: pages it needs at each target."""

    request: str
    transfers: Mapping[tuple[str, str], int]
    pages: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        """All bytes that it moves."""
        return sum(self.transfers.values())

    def stall(self, bandwidth: Callable[[str, str], float]) -> float:
        """Return the least seconds of its own exchange, with links working in parallel."""
        return max([size / bandwidth(*link) for link, size in self.transfers.items()], default=0.0)


class ExchangeOrder:
    """The stale sequences of one change. ``bandwidth``: of a link, in bytes per second."""

    def __init__(self, bandwidth: Callable[[str, str], float], at_once: int = AT_ONCE) -> None:
        self._bandwidth, self._at_once = bandwidth, at_once
        self._waiting: dict[str, tuple[float, StaleSequence]] = {}
        self.moving: dict[str, StaleSequence] = {}

    def add(self, sequence: StaleSequence) -> None:
        self._waiting[sequence.request] = sequence.stall(self._bandwidth), sequence

    def next(self, free: Mapping[str, int]) -> list[StaleSequence]:
        """Return the sequences that begin to move now, in order.

        ``free``: pages at each worker, without those of moving ones.
        """
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
        """Return the sequence to recompute, so that others get its memory: the one with the longest stall.

        Call it when ``next`` returns none and nothing runs that could free memory. None: some sequence moves, or none
        waits.
        """
        if self.moving or not self._waiting:
            return None
        _, found = max(self._waiting.values(), key=lambda one: (one[0], one[1].request))
        self.done(found.request)
        return found

    def done(self, request: str) -> None:
        """Remove a sequence that has moved, or is gone."""
        self._waiting.pop(request, None)
        self.moving.pop(request, None)

    def lost(self, worker: str) -> list[StaleSequence]:
        """Remove and return the sequences to recompute after a member's death: their KV came from there or went there."""
        sequences = [*self.moving.values(), *(sequence for _, sequence in self._waiting.values())]
        found = [one for one in sequences if any(worker in link for link in one.transfers)]
        for one in found:
            self.done(one.request)
        return found

    @property
    def requests(self) -> list[str]:
        """The requests that move, or wait for their turn."""
        return [*self.moving, *self._waiting]

    @property
    def left(self) -> int:
        """The number of sequences that have not moved."""
        return len(self._waiting) + len(self.moving)
