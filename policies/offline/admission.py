"""The admission of an offline request beside running ones: by what all of them will hold, not by what they hold now.

On average a sequence holds half of its answer. Long answers that start together are short together and long together, so
their growth is simulated (``growth.py``): one starts if the running ones will never hold more than there is, a short one
if it fits until it ends. The live feed and the simulation use the same rule.
"""

from __future__ import annotations

import math

from .growth import Growth
from .scanner import DualScanner

SPARE = 0.01  # fraction of memory that must be free besides a new sequence, or it would be stopped at once
LONG = 1024  # answers of at least this many tokens are simulated before a sequence starts
RESERVED = 0.5  # largest fraction of memory that long answers leave to the left side


class OfflineFit:
    """The admission test with the long sequences of one scanner's memory. In a step each of them grows by a token."""

    __slots__ = ("_scanner", "growth")

    def __init__(self, scanner: DualScanner) -> None:
        self._scanner = scanner
        self.growth = Growth()

    def need(self, new: int, more: int, held: int, step: int, *, alone: bool) -> float:
        """Return the positions that a request counts for if it starts now; infinite: not now.

        Args:
            new: positions that it takes at once.
            more: tokens of its answer that are to come, by estimate.
            held: positions that all sequences hold now.
            step: the number of this step.
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
        """Note that a request runs from now on, with ``new`` positions."""
        if more >= LONG:
            self.growth.begin(request, step, new, more)

    def ended(self, request: int) -> None:
        """Note that a request runs no more. No-op for a short one."""
        self.growth.end(request)

    def _reserved(self) -> int:
        """Return the positions kept free of long answers, for the left side."""
        scanner = self._scanner
        if scanner.met or not scanner.running("right"):
            return 0
        return round(min(scanner.use().left_most, RESERVED * scanner.memory))
