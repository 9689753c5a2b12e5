"""Confidence of a tier: each measure's value, the threshold for a loss, and what a choice of tiers amounts to."""

from __future__ import annotations

import math
import random

import pytest

from blockwright.policies.model.confidence import (
    ALWAYS,
    MEASURES,
    NEVER,
    GradedAnswer,
    choose,
    confidence,
    goes_up,
    judge,
    oracle,
)


def logs(*places: tuple[float, ...]) -> list[list[float]]:
    return [[math.log(p) if p else -math.inf for p in place] for place in places]


def test_each_measure_has_its_value() -> None:
    likely = logs((0.5, 0.25, 0.25, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0, 0.0))
    assert confidence("mean", likely) == pytest.approx(0.75)
    assert confidence("least", likely) == pytest.approx(0.5)
    assert confidence("margin", likely) == pytest.approx((0.25 + 1.0) / 2)
    assert confidence("entropy", likely) == pytest.approx(1 - (1.5 * math.log(2)) / math.log(6) / 2)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_lies_between_0_and_1_and_a_sure_answer_has_1(measure: str) -> None:
    assert confidence(measure, []) == 1.0
    assert confidence(measure, logs((1.0, 0.0, 0.0, 0.0, 0.0))) == 1.0
    flat = confidence(measure, logs((1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6)))
    assert 0.0 <= flat < 0.2
    assert goes_up(flat, ALWAYS)
    assert not goes_up(flat, NEVER)


def sample(sure: float, low: bool, top: bool, tokens: int = 20) -> GradedAnswer:
    return GradedAnswer(confidence=sure, right_low=low, right_top=top, tokens_low=tokens, tokens_top=tokens)


def test_the_threshold_is_the_least_that_keeps_the_loss() -> None:
    samples = [sample(1 - i / 100, low=i < 60, top=True) for i in range(100)]  # the 60 surest are right
    assert choose(samples, 0) == pytest.approx(0.41)
    assert choose(samples, 5) == pytest.approx(0.36)
    assert choose(samples, 100) == NEVER
    assert judge(samples, choose(samples, 5), 4, 6).right == pytest.approx(0.95)


def test_equal_confidences_stay_together_and_an_unsure_tier_never_answers() -> None:
    assert choose([sample(0.5, low=i % 2 == 0, top=True) for i in range(10)], 1) == ALWAYS
    assert choose([sample(0.5, low=True, top=False)], 0) == NEVER
    assert choose([], 1) == NEVER


def test_no_threshold_above_the_chosen_one_loses_more() -> None:
    draw = random.Random(4)
    for _ in range(50):
        samples = [
            sample(draw.randrange(8) / 8, low=draw.random() < 0.6, top=draw.random() < 0.8)
            for _ in range(draw.randint(1, 40))
        ]
        loss = draw.choice((0, 1, 5, 20))
        theta = choose(samples, loss)
        top = judge(samples, ALWAYS, 4, 6).right
        for above in {one.confidence for one in samples if one.confidence >= theta}:
            assert 100 * (top - judge(samples, above, 4, 6).right) <= loss + 1e-9


def test_the_work_of_a_choice_is_tokens_times_layers() -> None:
    samples = [sample(0.9, low=True, top=True), sample(0.1, low=False, top=True)]
    assert judge(samples, NEVER, 3, 6).work == pytest.approx(0.5)
    assert judge(samples, ALWAYS, 3, 6).work == pytest.approx(1 + 16 * 3 / (20 * 6)), "the first 16 tokens come twice"
    half = judge(samples, 0.5, 3, 6)
    assert (half.right, half.up, half.work) == (1.0, 0.5, pytest.approx((16 * 3 + 20 * 6 + 20 * 3) / (40 * 6)))
    best = oracle(samples, 3, 6)
    assert (best.right, best.up, best.work) == (1.0, 0.5, pytest.approx(0.75))
