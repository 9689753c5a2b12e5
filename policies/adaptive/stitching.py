"""Points at which a stitch leads from one chain into another, and the position that tells it where it stands.

A stitch is one matrix for a pair of foundations: ``W [h; pos]``. The position is constant at a point, so its column times
the position is that point's bias, and ``W`` itself exists once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.chain import Component
from .equivalence import layers_of


@dataclass(frozen=True, slots=True, order=True)
class StitchPoint:
    """A border at which the states behind ``depth`` components go on before component ``other_depth`` of another chain.

    ``position``: the layer left plus the layer entered, each counted from 0 in its own chain, scaled to 0 .. 1.
    """

    depth: int
    other_depth: int
    position: float


def stitch_points(own: Sequence[Component], other: Sequence[Component]) -> list[StitchPoint]:
    """Return the points between layers at the same relative depth, the shallow ones first.

    There is one behind each layer of the shallower chain but the last, in whose place there would be nothing to enter.
    """
    mine, theirs = layers_of(own), layers_of(other)
    count = min(len(mine), len(theirs))
    most = max(1, len(mine) + len(theirs) - 2)
    found = []
    for border in range(1, count):
        left, entered = ((2 * border * len(layers) + count) // (2 * count) for layers in (mine, theirs))
        found.append(StitchPoint(mine[left - 1][1], theirs[entered][0], (left - 1 + entered) / most))
    return found
