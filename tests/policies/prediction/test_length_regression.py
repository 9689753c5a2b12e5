"""The trained model: better than history, which is better than a constant, on prompts whose answers depend on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from blockwright.api.demo.tasks import TASKS, TRAIN, make_example
from blockwright.policies.prediction.length_models import compared, restored
from blockwright.policies.prediction.length_regression import LengthRegression, trained
from blockwright.policies.prediction.lengths import TERMS, Accuracy, Features, LengthSample, features_of
from blockwright.tests.claims import claim


def corpus(seed: int, count: int) -> list[LengthSample]:
    """Tasks of the demo, of two applications: "chat" gets those with short answers more often. A token is a character."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        application = draw.choice(("chat", "tools"))
        more = ("count", "add", "length") * 4 if application == "chat" else ()
        example = make_example(draw, draw.choice([*TASKS, *more]), TRAIN)
        features = features_of(application, [ord(letter) for letter in example.prompt], 64)
        made.append(LengthSample(features, len(example.answer) + 1, True))
    return made


def figures(estimate: Callable[[Features], int], lessons: list[LengthSample]) -> dict[str, float]:
    seen = Accuracy()
    for lesson in lessons:
        seen.add(estimate(lesson.features), lesson.length)
    return seen.figures()


def orders(count: int, passes: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.sample(range(count), count) for _ in range(passes)]


def learned(lessons: list[LengthSample], passes: int, seed: int) -> LengthRegression:
    return trained(lessons, orders(len(lessons), passes, seed))


@claim("Lengths of answers are estimated from prompt, model and limits, and outrun estimates are corrected", of="prediction")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_beats_history_which_beats_a_constant(seed: int) -> None:
    lessons, unseen = corpus(seed, 400), corpus(100 + seed, 200)
    model, outcome = compared(lessons, unseen, orders(400, 10, seed))
    error = {name: outcome[name]["mean_error"] for name in outcome}
    assert error["trained"] < 0.7 * error["history"] < error["history"] < error["constant"]
    assert outcome["trained"]["relative_error"] < 0.7 * min(
        outcome[name]["relative_error"] for name in ("history", "constant")
    )
    assert {outcome[name]["requests"] for name in outcome} == {200}
    assert outcome["trained"] == figures(learned(lessons, 10, seed).estimate, unseen), "measured before it learned them"
    assert model.lessons == 4000 + 200


def test_it_goes_on_learning_while_it_serves() -> None:
    """From nothing, one lesson at a time, each estimated before it is learned."""
    model = LengthRegression.untrained()
    early = Accuracy()
    late = Accuracy()
    lessons = corpus(4, 800)
    assert model.estimate(lessons[0].features) == 0
    for number, lesson in enumerate(lessons):
        (early if number < 100 else late).add(model.estimate(lesson.features), lesson.length)
        model.learn(lesson)
    assert late.figures()["mean_error"] < 0.85 * early.figures()["mean_error"]
    assert late.figures()["relative_error"] < 0.7 * early.figures()["relative_error"]
    assert model.lessons == 800


def test_a_few_wild_lengths_do_not_move_it_far() -> None:
    lessons = corpus(5, 300)
    before = learned(lessons, 5, 5)
    wild = [LengthSample(lesson.features, 4000, True) for lesson in lessons[:6]]
    after = learned([*lessons, *wild], 5, 5)
    unseen = corpus(105, 100)
    assert figures(after.estimate, unseen)["mean_error"] < 1.5 * figures(before.estimate, unseen)["mean_error"]


def test_a_limit_bounds_from_below_and_bounds_estimates() -> None:
    lessons = corpus(6, 100)
    model = learned(lessons, 5, 6)
    features = lessons[0].features
    outcome = model.estimate(features)
    state = model.snapshot()
    model.learn(LengthSample(features, max(1, outcome - 5), False))
    assert model.snapshot() == state
    for _ in range(20):
        model.learn(LengthSample(features, outcome + 20, False))
    assert model.estimate(features) > outcome
    assert model.estimate(Features("chat", 3, 2, terms=features.terms)) == 2
    assert LengthRegression.untrained().estimate(Features("chat", 3, 7, stated=True)) == 7


def test_snapshots_are_the_state() -> None:
    model = learned(corpus(7, 50), 2, 7)
    again = restored(model.snapshot())
    assert again.snapshot() == model.snapshot()
    assert [again.estimate(one.features) for one in corpus(8, 50)] == [model.estimate(one.features) for one in corpus(8, 50)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.0] * 5}, f"weights has 5, not {TERMS} numbers"),
        ({"weights": None}, "weights is None, not 1024 numbers"),
        ({"weights": [0.0] * (TERMS - 1) + [float("inf")]}, r"weights\[1023\] is inf, not a finite number"),
        ({"squares": [0.5] * TERMS}, r"squares\[0\] is 0.5, not a finite number of at least 1"),
        ({"lessons": -1}, "lessons is -1, not a count"),
        ({"kind": "guess"}, "kind is 'guess', not one of history, trained"),
    ],
)
def test_a_snapshot_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        restored(LengthRegression.untrained().snapshot() | change)
