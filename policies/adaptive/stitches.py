"""Stitches between two models: the points where a chain may go over into the other, and which weights are kept.

At a point a stitch maps the hidden states behind some components of one chain to the states before a component of the
other. All stitches of a pair of models have one matrix; its bias is each point's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..model.chain import Component
from .equivalence import BlockPair, candidate_pairs


@dataclass(frozen=True, slots=True, order=True)
class StitchPoint:
    """The ``left`` components of a chain that come before a stitch, and the other chain's component that follows it."""

    left: int
    entered: int


@dataclass(frozen=True, slots=True)
class StitchFigures:
    """The measurements of a chain that goes over at a point, on validation rows, against the other model alone.

    ``distance``: mean squared distance of the states entered, relative to their spread. ``kl``: divergence of the output
    in nats. ``similarity``: mean cosine of the vocabulary probabilities.
    """

    distance: float
    kl: float
    similarity: float

    @property
    def loss(self) -> float:
        """The loss that training lowers."""
        return self.kl + self.distance

    def is_no_worse(self, other: StitchFigures) -> bool:
        """Return True if neither the loss nor the similarity is worse."""
        return self.loss <= other.loss and self.similarity >= other.similarity


def stitch_points(own: Sequence[Component], other: Sequence[Component]) -> list[StitchPoint]:
    """Return the points at which a chain may go over into the other, from the first to the last.

    These are the borders of all pairs of blocks that ``candidate_pairs`` names, so that a stitch of either direction lies
    at each end of a block that is swapped.
    """
    borders = set[StitchPoint]()
    for pair in candidate_pairs(own, other, same_tokens=True):
        for point in ends(pair):
            if 0 < point.left < len(own) and 0 < point.entered < len(other):
                borders.add(point)
    return sorted(borders)


def ends(pair: BlockPair) -> tuple[StitchPoint, StitchPoint]:
    """Return where a swap enters the other chain, and where it leaves it, as points of the swapped chain."""
    return StitchPoint(pair.first, pair.other_first), StitchPoint(pair.last, pair.other_last)


Figures = Mapping[StitchPoint, StitchFigures]


def is_better(found: Figures, kept: Figures, least: Figures) -> bool:
    """Return True if weights are to be kept in place of others.

    Their mean loss is lower, and at no point they are worse than the ``least`` ones.
    """
    if any(not one.is_no_worse(least[point]) for point, one in found.items()):
        return False
    return sum(one.loss for one in found.values()) < sum(one.loss for one in kept.values())


Crossings = tuple[StitchPoint | None, StitchPoint | None]


def crossings(pair: BlockPair, own: Sequence[Component], other: Sequence[Component]) -> Crossings | None:
    """Return the stitches that a swap needs: into the other chain, and back from it, each as a point of the chain it leaves.

    None in place of a point: the widths are equal there. None for both: no stitch helps, since the outputs of two heads
    have different widths.
    """
    (first, other_first), (last, other_last) = ((one.left, one.entered) for one in ends(pair))
    enters = own[first].width_in != other[other_first].width_in
    leaves = own[last - 1].width_out != other[other_last - 1].width_out
    if (enters and not (first and other_first)) or (leaves and (last == len(own) or other_last == len(other))):
        return None
    return StitchPoint(first, other_first) if enters else None, StitchPoint(other_last, last) if leaves else None
