"""The cost model is found again from what it says, in spite of noise, and follows a machine that changes."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from blockwright.policies.plan.coefficients import TERMS, Coefficients
from blockwright.policies.plan.cost import cost, features
from blockwright.policies.plan.fit import EAGER, EVERY, REFIT, OnlineFit, Sample, fit, predict, relative_errors
from blockwright.policies.plan.sweep_plan import Step, SweepPlan
from blockwright.tests.claims import claim

TRUE = Coefficients(
    base=2e-4, step=2e-5, read=2e-3, token=1e-5, beyond=4e-5, row=1e-5, context=2e-8, prefill=3e-9, parameters=4e7, kv=6144.0
)  # fmt: skip


def some_plan(draw: Random) -> SweepPlan:
    """Decoding rows, a prompt, or both; in one run and a head, or in more."""
    start = [draw.randrange(600) for _ in range(draw.choice((0, draw.randrange(48))))]
    count = [1] * len(start)
    if not start or draw.random() < 0.5:
        start.append(draw.randrange(1000))
        count.append(draw.randrange(2, 256))
    rows = list(range(len(start)))
    runs = draw.choice((1, 4))
    body = [Step(i, rows, [], 36_000_000 // runs, 6144 // runs) for i in range(runs)]
    drawn = rows if draw.random() < 0.7 else [i for i in rows if count[i] == 1]
    head = [Step(9, drawn, [], 4_000_000, 0, True)] if drawn else []
    return SweepPlan(1, row=rows, start=start, count=count, sample=drawn, steps=body + head)


def samples(count: int, seed: int, noise: float) -> list[Sample]:
    """Of a machine that takes what ``TRUE`` says, times a factor around 1."""
    draw, found = Random(seed), []
    for _ in range(count):
        counts = features(some_plan(draw), TRUE.parameters, TRUE.kv)
        found.append((counts, predict(counts, TRUE) * (1 + noise * draw.uniform(-1, 1))))
    return found


@claim("A cost model of few terms predicts the time of sweeps that it was not fitted to", of="prediction")
def test_what_was_measured_without_noise_is_found_again() -> None:
    found = fit(samples(120, 1, 0.0), TRUE.parameters, TRUE.kv)
    for name in TERMS:
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name


@claim("A cost model of few terms predicts the time of sweeps that it was not fitted to", of="prediction")
def test_with_noise_other_sweeps_are_predicted_and_no_term_is_negative() -> None:
    found = fit(samples(120, 1, 0.1), TRUE.parameters, TRUE.kv)
    errors = relative_errors(samples(60, 2, 0.0), found)
    assert sum(errors) / len(errors) < 0.02
    assert all(getattr(found, name) >= 0 for name in TERMS)
    idle = [(counts, 1e-3 - 1e-7 * counts[3]) for counts, _ in samples(60, 1, 0.0)]  # less for each token
    assert all(getattr(fit(idle, TRUE.parameters, TRUE.kv), name) >= 0 for name in TERMS)


@claim("A worker refits its cost model while it serves", of="prediction")
def test_a_worker_follows_a_machine_that_became_slower_in_one_respect() -> None:
    """Its drift tells by how much; the error of the model that is fitted again becomes small."""
    draw, online = Random(3), OnlineFit(TRUE)
    slower = dataclasses.replace(TRUE, read=2 * TRUE.read)
    for _ in range(40 * EVERY):
        online.record(plan := some_plan(draw), cost(plan, TRUE))
    assert (online.drift, online.error) == pytest.approx((0, 0), abs=1e-9)
    assert online.coefficients.read == pytest.approx(TRUE.read)
    for _ in range(1500 * EVERY):
        online.record(plan := some_plan(draw), cost(plan, slower))
    assert 0.1 < online.drift < 1.0
    assert online.error < 0.02
    assert online.coefficients.read == pytest.approx(slower.read, rel=0.1)
    assert online.coefficients.token == pytest.approx(TRUE.token, rel=0.2)


def test_plans_without_rows_and_profiles_that_say_nothing_are_no_samples() -> None:
    online = OnlineFit(Coefficients())
    for _ in range(2 * EVERY):
        online.record(SweepPlan(1), 1.0)
        online.record(some_plan(Random(1)), 1.0)
    assert (online.drift, online.error) == (0.0, 0.0)


def test_without_a_profile_it_begins_with_what_the_first_sweeps_say() -> None:
    """Not before it has seen some; then it predicts sweeps like the ones that it has seen."""
    draw = Random(5)
    online = OnlineFit()
    plain = dataclasses.replace(TRUE, parameters=0.0, kv=0.0, read=0.0, step=0.0)
    for number in range(EAGER * REFIT):
        assert online.fitted == (number >= REFIT)
        online.record(plan := some_plan(draw), cost(plan, plain))
    errors = [abs(cost(plan, online.coefficients) / cost(plan, plain) - 1) for plan in (some_plan(draw) for _ in range(60))]
    assert sum(errors) / len(errors) < 0.1
    same = OnlineFit()
    alone, many = (SweepPlan(1, row=[*range(n)], start=[9] * n, count=[1] * n, sample=[*range(n)]) for n in (1, 8))
    for _ in range(2 * REFIT):
        same.record(alone, 0.02)
    assert cost(alone, same.coefficients) == pytest.approx(0.02, rel=0.01)
    assert cost(alone, same.coefficients) < cost(many, same.coefficients) < 2 * cost(alone, same.coefficients)
