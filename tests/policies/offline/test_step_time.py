"""Seconds of a step on three back ends: the definitions, their convexity, and many steps at once."""

from __future__ import annotations

import itertools
import random

import pytest

from blockwright.policies.offline.step_time import INTERFERENCE, StepTime, calibrated, edges, ideal, sequential

WEIGHTS = 0.008


def speed(share: float) -> float:
    """P(x), linear between the measured points."""
    for (x, low), (next_x, high) in itertools.pairwise(INTERFERENCE):
        if share <= next_x:
            return low + (high - low) * (share - x) / (next_x - x)
    return 1.0


def searched(compute: float, memory: float, steps: int = 1000) -> float:
    """The definition: the best of many shares; both run until one ends, then the rest of the other alone."""
    best = compute + memory
    for number in range(1, steps):
        x = number / steps
        dense, bound = compute / (1 - x), memory / speed(x)
        if dense <= bound:
            best = min(best, dense + memory - speed(x) * dense)
        else:
            best = min(best, bound + compute - (1 - x) * bound)
    return best


def test_sequential_adds_and_ideal_takes_the_longer() -> None:
    assert sequential(WEIGHTS).seconds(0.02, 0.01) == pytest.approx(0.03)
    assert sequential(WEIGHTS).seconds(0.002, 0.01) == pytest.approx(0.018)
    assert ideal(WEIGHTS).seconds(0.02, 0.01) == pytest.approx(0.02)
    assert ideal(WEIGHTS).seconds(0.002, 0.001) == pytest.approx(WEIGHTS)


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 4.0, 10.0, 50.0])
def test_calibrated_is_the_best_share_of_the_device(ratio: float) -> None:
    found = calibrated().seconds(ratio, 1.0)
    assert found == pytest.approx(searched(ratio, 1.0), rel=2e-3)
    assert max(ratio, 1.0) <= found <= ratio + 1.0


def test_calibrated_gains_a_fifth_at_most_where_both_take_equally_long() -> None:
    gains = {ratio: (ratio + 1.0) / calibrated().seconds(ratio, 1.0) for ratio in (0.2, 0.5, 1.0, 1.5, 4.0)}
    assert max(gains.values()) == pytest.approx(1.2) == gains[1.0]
    assert gains[0.2] < gains[0.5] <= gains[1.0] >= gains[1.5] > gains[4.0]


@pytest.mark.parametrize("clock", [sequential(), ideal(), calibrated()], ids=["sequential", "ideal", "calibrated"])
def test_no_division_into_steps_is_faster_than_the_bound(clock: StepTime) -> None:
    chance = random.Random(1)
    steps = [(chance.random(), chance.random()) for _ in range(50)]
    whole = clock.bound(sum(compute for compute, _ in steps), sum(memory for _, memory in steps))
    assert whole <= sum(clock.seconds(*step) for step in steps) + 1e-12
    assert clock.bound(2.0, 3.0) == pytest.approx(2 * clock.bound(1.0, 1.5))


@pytest.mark.parametrize("clock", [sequential(WEIGHTS), ideal(WEIGHTS), calibrated(WEIGHTS)])
@pytest.mark.parametrize("compute", [0.001, 0.02, 0.5])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 17, 1000])
def test_many_steps_take_as_long_as_each_by_itself(clock: StepTime, compute: float, steps: int) -> None:
    memory, growth = 0.004, 0.0003
    each = sum(clock.seconds(compute, memory + growth * number) for number in range(steps))
    assert clock.run(compute, memory, growth, steps) == pytest.approx(each, rel=1e-9)


@pytest.mark.parametrize(
    "table",
    [[], [(0.0, 0.0)], [(0.0, 0.1), (1.0, 1.0)], [(0.0, 0.0), (0.5, 0.2), (1.0, 1.0)], [(0.0, 0.0), (0.5, 1.2), (1.0, 1.0)],
     [(0.0, 0.0), (0.5, 0.6), (0.4, 0.7), (1.0, 1.0)]],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(table: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="table of interference"):
        edges(table)
