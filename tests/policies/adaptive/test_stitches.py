"""Places of stitches between two chains, the ones that a swap needs, and the weights that are kept."""

from __future__ import annotations

import pytest

from blockwright.policies.adaptive.equivalence import BlockPair
from blockwright.policies.adaptive.stitches import (
    StitchFigures,
    StitchPoint,
    crossings,
    is_better,
    stitch_points,
)

from .test_equivalence import chain

FIRST, SECOND = StitchPoint(1, 1), StitchPoint(2, 2)


def figures(loss: float, similarity: float = 0.9) -> StitchFigures:
    return StitchFigures(loss, 0.0, similarity)


def test_chains_of_as_many_layers_are_joined_at_each_component() -> None:
    assert stitch_points(chain(2, "a"), chain(2, "b", width=12)) == [StitchPoint(n, n) for n in range(1, 6)]


def test_other_chains_are_joined_where_groups_of_layers_end() -> None:
    """3 layers against 4: the groups end behind 1 of 1, 2 of 3 and all."""
    found = stitch_points(chain(3, "a"), chain(4, "b", width=12))
    assert found == [StitchPoint(1, 1), StitchPoint(3, 3), StitchPoint(5, 7), StitchPoint(7, 9)]
    back = stitch_points(chain(4, "b", width=12), chain(3, "a"))
    assert sorted(StitchPoint(one.entered, one.left) for one in back) == found, "both directions have the same places"


def test_a_swap_is_entered_and_left_by_a_stitch_where_widths_differ() -> None:
    own, equal = chain(2, "a"), chain(2, "c")
    wider = chain(2, "b", width=12)
    assert crossings(BlockPair(1, 3, 1, 3), own, wider) == (StitchPoint(1, 1), StitchPoint(3, 3))
    assert crossings(BlockPair(1, 3, 3, 5), own, wider) == (StitchPoint(1, 3), StitchPoint(5, 3))
    assert crossings(BlockPair(0, 1, 0, 1), own, wider) == (None, StitchPoint(1, 1)), "tokens need none"
    assert crossings(BlockPair(5, 6, 5, 6), own, wider) == (StitchPoint(5, 5), None), "and logits neither"
    assert crossings(BlockPair(1, 3, 2, 5), own, equal) == (None, None)
    assert crossings(BlockPair(5, 6, 5, 6), own, chain(2, "b", vocabulary=33)) is None
    assert crossings(BlockPair(0, 2, 1, 2), own, wider) is None, "tokens cannot be stitched"


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ((figures(0.4), figures(0.9)), True),
        ((figures(0.1), figures(1.1)), False),  # a better mean, and worse at one point
        ((figures(0.4), figures(1.0)), True),
        ((figures(0.5), figures(1.0)), False),  # nothing gained
        ((figures(0.1, 0.89), figures(0.9)), False),  # less similar at one point
    ],
)
def test_weights_are_kept_if_better_on_the_whole_and_worse_nowhere(
    found: tuple[StitchFigures, StitchFigures], kept: bool
) -> None:
    least = {FIRST: figures(0.5), SECOND: figures(1.0)}
    assert is_better(dict(zip((FIRST, SECOND), found, strict=True)), least, least) is kept
