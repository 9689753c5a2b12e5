"""Turns of tiers: the part of a worker's rows that the next sweep computes, and the count of turns taken.

A *short* sweep ends at an exit. It computes decoding rows of the tiers up to there; all other rows sit it out. A *whole*
sweep computes every tier. With ``separate`` tiers no sweep computes two of them, as if each had an engine of its own.
``TurnChoice`` (``turn_choice.py``) chooses among the turns by the rule here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plain import Plain

LOCKSTEP = "lockstep"
AUTO = "auto"
GAIN = 0.01  # fraction of a mean token's time that short sweeps must save: less is not worth the wait
_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """The rows of one sweep: those of the tiers ``first`` to ``last``, counted from the lowest, 0.

    short: it takes decoding rows alone, without prompts, starts and offline rows.
    """

    first: int = 0
    last: int = _FAR
    short: bool = False

    def takes(self, tier: int) -> bool:
        """Return whether rows of this tier take part."""
        return self.first <= tier <= self.last

    @property
    def whole(self) -> bool:
        """True if rows of every tier take part."""
        return self.first == 0 and self.last == _FAR


WHOLE = Turn()


class TierTurns:
    """The turns taken so far by one worker."""

    def __init__(self) -> None:
        self.short = 0  # short sweeps since the last whole one
        self.tier = -1  # the last tier that had a sweep to itself

    def take(self, turn: Turn) -> None:
        """Count a sweep that was made."""
        self.short = self.short + 1 if turn.short else 0
        self.tier = -1 if turn.short or turn.whole else turn.last

    def fork(self) -> TierTurns:
        copy = TierTurns()
        copy.short, copy.tier = self.short, self.tier
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {"short": self.short, "tier": self.tier}

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> TierTurns:
        turns = cls()
        turns.short, turns.tier = data["short"], data["tier"]
        return turns

    def check(self, limit: int) -> None:
        """Raise AssertionError if rows sat out more than ``limit`` sweeps in a row."""
        assert 0 <= self.short <= limit, f"{self.short} short sweeps in a row, where {limit} are allowed"


def best_exit(mode: str, limit: int, whole: tuple[int, float], short: Sequence[tuple[int, float]]) -> tuple[int, int]:
    """Return the exit at which short sweeps should end, and their number between two whole ones; 0: none.

    With k short sweeps of S seconds to a whole one of T seconds, a row that takes part in all waits (k S + T) / (k + 1)
    seconds for a token, and any other k S + T. ``auto`` takes the k that makes the mean of all rows least. The mean of the
    rows in short sweeps alone would not do: a lower tier's tokens would then gain whatever the higher ones lose.
    ``decoupled`` takes the largest k in any case.

    Args:
        mode: lockstep, decoupled or auto.
        limit: most short sweeps in a row.
        whole: all rows, and the seconds of a whole sweep.
        short: for each exit the rows that take part in a sweep that ends there, and its seconds; no rows: none does.
    """
    rows, seconds = whole
    least = seconds * rows * (1 - GAIN) if mode == AUTO else float("inf")
    found = (0, 0)
    if mode == LOCKSTEP:
        return found
    for place, (going, each) in enumerate(short):
        for turns in range(1 if mode == AUTO else limit, limit + 1) if going else ():
            waited = (turns * each + seconds) * (going / (turns + 1) + rows - going)
            if waited < least:
                least, found = waited, (place, turns)
    return found
