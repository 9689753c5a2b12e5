"""Estimates from history: what it leans on, what it forgets, what a limit tells, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.prediction.length_history import MOST_LEVELS, LengthHistory
from blockwright.policies.prediction.length_models import restored
from blockwright.policies.prediction.lengths import Features, LengthSample


def of(application: str = "a", prompt: int = 10, max_tokens: int = 1000, **more: Any) -> Features:
    return Features(application, prompt, max_tokens, **more)


def taught(*lessons: tuple[Features, int], whole: bool = True) -> LengthHistory:
    made = LengthHistory()
    for features, length in lessons:
        made.learn(LengthSample(features, length, whole))
    return made


def test_nothing_is_known_at_first_but_what_is_stated() -> None:
    assert LengthHistory().estimate(of()) == 0
    assert LengthHistory().estimate(of(stated=True, max_tokens=7)) == 7


def test_it_backs_off_from_prompt_length_to_application_to_all() -> None:
    history = taught(*[(of(prompt=10), 20)] * 50, *[(of(prompt=500), 200)] * 50, *[(of("b"), 5)] * 50)
    short, long, between = (history.estimate(of(prompt=prompt)) for prompt in (9, 400, 100))
    assert 19 <= short <= 23 < between < 180 < long <= 200
    assert history.estimate(of("b", prompt=3000)) == pytest.approx(5, abs=1)
    everybody = history.estimate(of("c"))
    assert history.estimate(of("b")) < everybody < long
    assert history.estimate(of(prompt=400, max_tokens=30)) == 30


def test_one_lesson_does_not_decide_and_old_ones_fade() -> None:
    history = taught(*[(of(), 20)] * 100, (of(prompt=500), 600))
    assert 20 < history.estimate(of(prompt=500)) < 100
    for _ in range(600):
        history.learn(LengthSample(of(), 200, True))
    assert history.estimate(of()) > 150


def test_a_limit_bounds_from_below() -> None:
    history = taught(*[(of(), 100)] * 20)
    before = history.snapshot()
    history.learn(LengthSample(of(max_tokens=16), 16, False))
    assert history.snapshot() == before, "16 of about 100 tokens: as expected"
    history.learn(LengthSample(of(), 900, False))
    assert history.estimate(of()) > 100


def test_snapshots_are_the_state() -> None:
    history = taught((of(), 20), (of("b", 77), 30), (of("b", 700), 40))
    again = restored(history.snapshot())
    for one in (history, again):
        one.learn(LengthSample(of("b"), 9, True))
    assert history.snapshot() == again.snapshot()
    assert history.estimate(of("b", 70)) == again.estimate(of("b", 70))


def test_it_is_bounded_and_forgets_who_is_not_seen() -> None:
    history = taught(*[(of(f"m{number}"), 10) for number in range(MOST_LEVELS)])
    levels = history.snapshot()["levels"]
    assert len(levels) == MOST_LEVELS
    assert [level for level in levels if level[0] == ""], "everybody is seen always"
    assert not [level for level in levels if level[0] == "m0"]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (None, "levels is no list of at most 2048"),
        ([["", -1, 1.0, 2.0], ["a", 3, 0.0, 2.0]], r"levels\[1\] is \['a', 3, 0.0, 2.0\]"),
        ([["", -1, 1.0, float("nan")]], r"levels\[0\] is .*nan"),
        ([["", -1, 1.0]], r"levels\[0\]"),
    ],
)
def test_a_snapshot_that_cannot_be(levels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        restored({"kind": "history", "levels": levels})
