"""Whether an offline request may start beside those that run: by what all of them will hold, not by what they hold now.

Half of an answer is what a sequence holds in the mean. Long answers that start together are short together and long
together, so they are played forward (``growth.py``): one starts if those that run will never hold more than there is, a
short one if it fits until it ends. The live feed and the simulation ask the same question here.
"""

from __future__ import annotations

import math

from .growth import Growth
from .scanner import DualScanner

SPARE = 0.01  # of memory: what must be free besides a sequence's tokens before it starts, or it would be stopped at once
LONG = 1024  # tokens of an answer from which on it is played forward before a sequence starts
RESERVED = 0.5  # of memory, at most: what long answers leave to the left side


class OfflineFit:
    """Long sequences of one scanner's memory. A step is a token more for each of them."""

    __slots__ = ("_scanner", "growth")

    def __init__(self, scanner: DualScanner) -> None:
        self._scanner = scanner
        self.growth = Growth()

    def need(self, new: int, more: int, held: int, step: int, *, alone: bool) -> float:
        """Positions that a request counts for if it starts now; infinite: not now.

        Args:
            new: positions that it takes at once.
            more: tokens of its answer that are to come, by estimate.
            held: positions that all sequences hold now.
            step: the number of this one.
            alone: nothing else runs, so that it starts in any case.
        """
        growth, memory = self.growth, self._scanner.memory
        spare = round(SPARE * memory)
        if more < LONG:
            fits = held + spare + new + more * (1 + len(growth)) <= memory
            return new + more / 2.0 if fits or alone else math.inf
        others = max(held - growth.now(step) + spare, self._reserved())
        fits = others + growth.with_one_more(step, new, more) <= memory
        return new if fits or alone else math.inf

    def started(self, request: int, new: int, more: int, step: int) -> None:
        """It runs from now on, with so many positions."""
        if more >= LONG:
            self.growth.begin(request, step, new, more)

    def ended(self, request: int) -> None:
        """It runs no more; nothing happens where it was short."""
        self.growth.end(request)

    def _reserved(self) -> int:
        """Positions that are kept free of long answers, for the left side."""
        scanner = self._scanner
        if scanner.met or not scanner.running("right"):
            return 0
        return round(min(scanner.use().left_most, RESERVED * scanner.memory))
