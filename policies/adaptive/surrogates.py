"""Surrogates: the half of a component's heads and columns that stays, and the cost of a block by its bytes.

A surrogate is a smaller block that may be computed in place of another one where an approximate answer is enough, as for
drafts.
"""

from __future__ import annotations

from collections.abc import Sequence


def better_half(scores: Sequence[float]) -> list[int]:
    """Return the places of the half with the highest scores, in ascending order; of an odd number, the larger half.

    Of equal ones the first stay.
    """
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return sorted(ranked[: -(-len(scores) // 2)])
