"""Tokens of a step: multiples of 128 whose mean is what the density asks for."""

from __future__ import annotations

import pytest

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.step_tokens import StepTokens

COSTS = Costs(token=1e-4, attend=0.0, read=1e-7)


@pytest.mark.parametrize("wanted", [200, 256, 333, 1000])
def test_rounded_up_and_down_so_that_the_mean_is_what_is_wanted(wanted: int) -> None:
    steps = StepTokens(COSTS, target=2.0)
    found = [steps.tokens(10, wanted * COSTS.token / 2.0) for _ in range(1000)]
    assert {tokens % 128 for tokens in found} == {0}
    assert max(found) - min(found) <= 128
    assert sum(found) / 1000 == pytest.approx(wanted, rel=1e-3)


def test_no_fewer_than_decode_or_than_reading_the_parameters_hides() -> None:
    assert StepTokens(COSTS, target=1.0).tokens(700, 0.0) >= 640
    steps = StepTokens(COSTS, target=1.0, weights=0.05)
    assert {steps.tokens(3, 0.0) for _ in range(50)} == {384}, "500 tokens are free, 512 are not"


def test_no_more_than_a_step_takes_and_none_carried_beyond() -> None:
    steps = StepTokens(COSTS, target=1.0, max_tokens=1024)
    assert {steps.tokens(10, 1.0) for _ in range(50)} == {1024}
    assert steps.tokens(10, 0.0256) <= 384  # what was not had is not made up for


def test_without_a_target_every_step_is_full() -> None:
    assert StepTokens(COSTS, None).tokens(5, 0.0) == 2048


def test_less_than_a_multiple_is_refused() -> None:
    with pytest.raises(ValueError, match="127 tokens at most; give 128"):
        StepTokens(COSTS, None, max_tokens=127)
