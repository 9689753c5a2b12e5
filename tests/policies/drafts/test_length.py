"""The length that gains most tokens a second, and none where nothing is gained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.policies.drafts.acceptance import Acceptance
from blockwright.policies.drafts.length import best_length


def seen(stood: int, rounds: int = 200) -> Acceptance:
    """Return the acceptance of rounds of eight drafts in which ``stood`` percent of the reached drafts stood."""
    acceptance = Acceptance()
    for place in range(8):
        reached = round(rounds * (stood / 100) ** place)
        acceptance.reached[place], acceptance.stood[place] = reached, round(reached * stood / 100)
    return acceptance


def roofline(read: int, token: int, beside: int = 0) -> Callable[[int], int]:
    return lambda drafts: max(read, token * (1 + drafts + beside))


def test_free_positions_are_all_used() -> None:
    assert best_length(seen(80), 7, 0, roofline(1000, 100)) == 7
    assert best_length(seen(80), 3, 0, roofline(1000, 100)) == 3


def test_positions_that_cost_a_sweep_each_are_not() -> None:
    assert best_length(seen(95), 8, 0, roofline(0, 1000)) == 0


def test_nothing_is_drafted_for_a_small_gain() -> None:
    assert best_length(seen(0), 4, 0, lambda drafts: 1000 + drafts) == 0


@pytest.mark.parametrize("stood", [20, 50, 80, 95])
@pytest.mark.parametrize("beside", [0, 3, 9])
def test_it_is_the_best_by_trying_all(stood: int, beside: int) -> None:
    acceptance, cost = seen(stood), roofline(1000, 180, beside)
    rates = [(beside + mean / (1 << 16)) / cost(g) for g, mean in enumerate(acceptance.expected(8))]
    best = best_length(acceptance, 8, beside, cost)
    assert rates[best] >= 0.94 * max(rates)
    assert best == 0 or rates[best] > rates[0]
