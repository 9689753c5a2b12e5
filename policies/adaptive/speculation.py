"""Speculation across a bottleneck: the surrogate that drafts for an application.

The chain with the surrogate draws the drafts, and the application's own chain verifies several of them in one passage of the
slow block. So no token changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 8  # drafts of a round that are considered
SUFFIX = "~surrogate"


@dataclass(frozen=True, slots=True)
class DraftingSurrogate:
    """A surrogate of components ``first`` to ``last - 1``.

    ``saved``: bytes of parameters that its chain reads less for a token. ``agreement``: share of positions where both chains
    have the same likeliest token.
    """

    first: int
    last: int
    saved: int
    agreement: float


def drafting_chain(application: str) -> str:
    """Return the id of the chain that drafts for an application. No client can name it."""
    return f"{application}{SUFFIX}"


def best_surrogate(surrogates: Sequence[DraftingSurrogate], components: int, nbytes: int) -> int:
    """Return the place of the surrogate whose drafts promise most tokens for the bytes that are read; -1: there is none.

    A round with ``g`` drafts reads the chain once and the drafting chain ``g`` times. Never at the last block of the chain,
    of ``components`` and ``nbytes``: behind it nothing is left to save.
    """
    best = -1
    most = 0.0
    for place, one in enumerate(surrogates):
        if one.last >= components:
            continue
        gain = max(_tokens(one.agreement, g) / (1 + g * (1 - one.saved / nbytes)) for g in range(1, LONGEST + 1))
        if gain > most:
            best, most = place, gain
    return best


def _tokens(agreement: float, drafts: int) -> float:
    """Return the mean number of tokens of a round if each draft stands with the same chance."""
    return sum(agreement**place for place in range(drafts + 1))
