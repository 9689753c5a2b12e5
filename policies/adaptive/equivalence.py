"""Equivalence of blocks: the pairs of two chains to measure, and the rule by which one may answer for the other.

A pair is a block of one chain and the block of another at the same relative depth. It counts if both hold: the states
behind the two blocks predict the same tokens (similarity), and the chain answers as before when only this block is swapped
(damage). Early blocks often pass the first test alone, because little can be predicted from their states yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..model.chain import Component, Kind

LEAST_RIGHT = 0.5  # share of prompts that a chain must answer right before lost answers can measure damage
STARTS = (Kind.ATTENTION, Kind.PARALLEL)  # components that begin a layer

Extent = tuple[int, int]  # first component and the one behind the last
Unit = tuple[Extent, Extent]


@dataclass(frozen=True, slots=True, order=True)
class BlockPair:
    """Components ``first`` .. ``last`` (exclusive) of a chain, and the ones of the other chain that may stand in."""

    first: int
    last: int
    other_first: int
    other_last: int


@dataclass(frozen=True, slots=True)
class EquivalenceLimits:
    """The limits of a pair that counts.

    ``similarity``: least mean cosine. ``damage``: most answers lost in 100. ``kl``: most divergence of the output in nats,
    for a chain without prompts that it answers.
    """

    similarity: float = 0.98
    damage: float = 1.0
    kl: float = 0.025

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is out of range."""
        for name, value, most in (("threshold", self.similarity, 1), ("damage", self.damage, 100), ("kl", self.kl, 100)):
            if not 0 <= value <= most:
                raise ValueError(f"{name} is {value:g}; give a number from 0 to {most}")


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The measurements of a pair.

    ``similarity``: mean cosine of the vocabulary probabilities behind both blocks; ``low``: its 5th percentile. ``kl``:
    divergence of the chain's output after the swap, in nats; None if it was not measured. ``lost``: answers lost by the
    swap in 100; None without enough right answers.
    """

    similarity: float
    low: float
    kl: float | None = None
    lost: float | None = None


def is_similar(figures: PairFigures, limits: EquivalenceLimits) -> bool:
    """Return True if the two blocks look alike, so that the damage of a swap is worth measuring."""
    return figures.similarity >= limits.similarity


def refusal(figures: PairFigures, limits: EquivalenceLimits, *, swappable: bool) -> str:
    """Return the reason why a pair does not count; empty if it counts. ``swappable``: the widths are equal, or
    stitches join the blocks.
    """
    if not is_similar(figures, limits):
        return f"similarity {figures.similarity:.4f} is below {limits.similarity:g}"
    if not swappable:
        return "their widths differ: a stitch has to join them"
    if figures.lost is not None:
        if figures.lost <= limits.damage:
            return ""
        return f"only looks alike: a swap loses {figures.lost:.2f} answers in 100, more than {limits.damage:g}"
    if figures.kl is not None and figures.kl <= limits.kl:
        return ""
    moved = (
        "is not measured" if figures.kl is None else f"moves the output by {figures.kl:.4f} nats, more than {limits.kl:g}"
    )
    return f"only looks alike: a swap {moved}"


def points_lost(right: int, right_swapped: int, prompts: int) -> float | None:
    """Return the answers lost in 100; None if too few are right without the swap for a loss to show."""
    if not prompts or right < LEAST_RIGHT * prompts:
        return None
    return 100 * (right - right_swapped) / prompts


def candidate_pairs(own: Sequence[Component], other: Sequence[Component], *, same_tokens: bool) -> list[BlockPair]:
    """Return the pairs to measure first, in the order of the chain; equal blocks are left out.

    Chains of as many layers are compared by component and by layer, others by groups of layers that end at the same
    relative depth: as many groups as the shallower chain has layers, and the fewest layers that end at exactly the same
    depth, such as 3 against 4. The embedding and the head are compared if both chains have the ``same_tokens``.
    """
    mine, theirs = layers_of(own), layers_of(other)
    found = dict.fromkeys(_pair(unit) for unit in _units(own, other, same_tokens))
    if len(mine) != len(theirs):
        found |= dict.fromkeys(map(_pair, _groups(mine, theirs, math.gcd(len(mine), len(theirs)))))
    else:
        found |= dict.fromkeys(_pair(one) for layers in zip(mine, theirs, strict=True) for one in _parts(own, other, layers))
    return sorted(pair for pair in found if not _equal(pair, own, other))


def longer_pairs(
    own: Sequence[Component], other: Sequence[Component], judged: Mapping[BlockPair, bool], *, same_tokens: bool
) -> list[BlockPair]:
    """Return longer pairs to measure next, given which pairs count so far; empty when all is known.

    Consecutive layers that count one by one are tried together. If the whole run does not count, the longest of its ends
    that does is searched by halving, because a swap hurts most in early layers.
    """
    found = []
    for run in _runs(own, other, judged, same_tokens):
        ends = [run[i:] for i in range(len(run)) if not _equal(_pair(run[i]), own, other)]
        pairs = [BlockPair(end[0][0][0], end[-1][0][1], end[0][1][0], end[-1][1][1]) for end in ends]
        refused, counts = -1, len(pairs) - 1  # places in ``pairs``; the last is a single unit, which counts
        for place, pair in enumerate(pairs[:-1]):
            if pair in judged:
                refused, counts = (refused, min(counts, place)) if judged[pair] else (max(refused, place), counts)
        if refused < 0 < counts:
            found.append(pairs[0])
        elif counts - refused > 1:
            found.append(pairs[(refused + counts) // 2])
    return found


def layers_of(chain: Sequence[Component]) -> list[Extent]:
    """Return the layers of a chain, the embedding and the head left out."""
    starts = [place for place, one in enumerate(chain) if one.kind in STARTS]
    return list(zip(starts, [*starts[1:], len(chain) - 1], strict=True)) if starts else []


def _runs(
    own: Sequence[Component], other: Sequence[Component], judged: Mapping[BlockPair, bool], same_tokens: bool
) -> Iterator[list[Unit]]:
    """Yield the longest runs of units that count or are equal; they begin and end with units that differ."""
    run: list[Unit] = []
    for unit in [*_units(own, other, same_tokens), None]:
        if unit is not None and (_equal(_pair(unit), own, other) or judged.get(_pair(unit), False)):
            run.append(unit)
            continue
        differing = [place for place, one in enumerate(run) if not _equal(_pair(one), own, other)]
        if len(differing) > 1:
            yield run[differing[0] : differing[-1] + 1]
        run = []


def _units(own: Sequence[Component], other: Sequence[Component], same_tokens: bool) -> list[Unit]:
    """Return the pieces that longer pairs are made of: the embedding, each layer or group of layers, and the head."""
    mine, theirs = layers_of(own), layers_of(other)
    groups = _groups(mine, theirs, min(len(mine), len(theirs)))
    if not same_tokens:
        return groups
    head = (len(own) - 1, len(own)), (len(other) - 1, len(other))
    return [((0, 1), (0, 1)), *groups, head]


def _groups(mine: Sequence[Extent], theirs: Sequence[Extent], count: int) -> list[Unit]:
    """Return ``count`` groups of layers of both chains that end at the same relative depth, to the nearest layer."""
    return [(_group(mine, i, count), _group(theirs, i, count)) for i in range(count)]


def _group(layers: Sequence[Extent], i: int, count: int) -> Extent:
    first, last = ((2 * border * len(layers) + count) // (2 * count) for border in (i, i + 1))
    return layers[first][0], layers[last - 1][1]


def _parts(own: Sequence[Component], other: Sequence[Component], layers: Unit) -> Iterator[Unit]:
    """Yield the components of a layer side by side, if both chains' have the same kinds."""
    (first, last), (other_first, other_last) = layers
    if [one.kind for one in own[first:last]] == [one.kind for one in other[other_first:other_last]]:
        for i in range(last - first):
            yield (first + i, first + i + 1), (other_first + i, other_first + i + 1)


def _pair(unit: Unit) -> BlockPair:
    return BlockPair(*unit[0], *unit[1])


def _equal(pair: BlockPair, own: Sequence[Component], other: Sequence[Component]) -> bool:
    """Return True if both are the same block, which needs no measurement."""
    mine, theirs = own[pair.first : pair.last], other[pair.other_first : pair.other_last]
    return [one.id for one in mine] == [one.id for one in theirs]
