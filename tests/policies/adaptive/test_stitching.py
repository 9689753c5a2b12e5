"""The points of a stitch: between layers at the same relative depth, with positions from 0 to 1."""

from __future__ import annotations

import pytest

from blockwright.policies.adaptive.stitching import stitch_points
from blockwright.tests.policies.adaptive.test_equivalence import chain


def test_points_lie_behind_layers_at_the_same_relative_depth() -> None:
    found = stitch_points(chain(3, "a"), chain(4, "b", width=12))
    # behind layers 0 and 1 of 3 (components 1 to 6), before layers 1 and 3 of 4
    assert [(one.depth, one.other_depth) for one in found] == [(3, 3), (5, 7)]
    assert [one.position for one in found] == [(0 + 1) / 5, (1 + 3) / 5]
    back = stitch_points(chain(4, "b"), chain(3, "a"))
    assert [(one.depth, one.other_depth) for one in back] == [(3, 3), (7, 5)]


@pytest.mark.parametrize(("mine", "theirs"), [(1, 1), (2, 9), (8, 8), (9, 2)])
def test_positions_rise_from_0_to_1(mine: int, theirs: int) -> None:
    found = stitch_points(chain(mine, "a", parallel=True), chain(theirs, "b", parallel=True))
    assert len(found) == min(mine, theirs) - 1
    positions = [one.position for one in found]
    assert positions == sorted(positions)
    assert all(0 < position <= 1 for position in positions)
