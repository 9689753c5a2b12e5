"""The half that stays."""

from __future__ import annotations

from blockwright.policies.adaptive.surrogates import better_half


def test_the_better_half_stays_in_order() -> None:
    assert better_half([3.0, 9.0, 1.0, 4.0]) == [1, 3]
    assert better_half([3.0, 9.0, 1.0]) == [0, 1]
    assert better_half([5.0, 5.0, 5.0, 5.0]) == [0, 1]
    assert better_half([7.0]) == [0]
