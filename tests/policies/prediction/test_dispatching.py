"""Dispatch policies: each definition on numbers worked out by hand, ties, candidates without forecasts, power of k."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from blockwright.policies.prediction.candidate import Candidate, Forecast
from blockwright.policies.prediction.dispatching import POLICIES, Targets, choose, drawn
from blockwright.policies.requests.standing import Standing
from blockwright.tests.claims import claim

FULL = Candidate(
    route="m@a", home="a", running=10, waiting=2, free_blocks=10, total_blocks=100, waiting_blocks=6, sent_last_minute=3,
    cached_blocks=0, forecast=Forecast(0.5, 4.0, 3.0, 0, 40),
)  # fmt: skip
QUIET = Candidate(
    route="m@b", home="b", running=2, waiting=0, free_blocks=70, total_blocks=100, waiting_blocks=0, sent_last_minute=5,
    cached_blocks=0, forecast=Forecast(1.0, 5.0, 0.5, 0, 40),
)  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "full", "quiet"),
    [
        ("min-qpm", (3,), (5,)),
        ("infaas", (90 / 10,), (30 / 2,)),  # the paper's form prefers who runs more
        ("infaas-code", (-10 / 10,), (-70 / 2,)),  # the code's does not
        ("llumnix-minus", (96 / 10,), (30 / 2,)),
        ("llumnix-minus-code", (-4 / 10,), (-70 / 2,)),
        ("prefix-aware", (96,), (30,)),
        ("predicted-latency", (4.0,), (5.0,)),
        ("predicted-ttft", (0.5,), (1.0,)),
        ("predicted-delay", (7.0,), (5.5,)),
        ("predicted-slo", (1, 2.0, 7.0), (1, 3.0, 5.5)),
        ("ours", (0.5 - 1 / 6, 4.0, -0.4), (1.0 - 1 / 6, 5.0, -35.0)),
    ],
)
def test_loads(policy: str, full: tuple[float, ...], quiet: tuple[float, ...]) -> None:
    choice = choose(policy, [FULL, QUIET], 0.0, targets=Targets(1.0, 2.0))
    assert choice.loads == [full, quiet]
    assert choice.index == int(quiet < full)
    assert not choice.reason


@claim("A cached prompt draws its request unless the load is too uneven", of="prediction")
def test_a_cached_prompt_draws_its_request_unless_the_load_is_too_uneven() -> None:
    assert choose("prefix-aware", [replace(FULL, cached_blocks=50), QUIET], 0.0).index == 1
    assert choose("prefix-aware", [replace(FULL, cached_blocks=67), QUIET], 0.0).index == 0


def test_an_idle_worker_divides_by_one() -> None:
    idle = Candidate(route="m@c", home="c", free_blocks=100, total_blocks=100)
    assert choose("llumnix-minus-code", [FULL, idle], 0.0).loads[1] == (-100.0,)


def test_round_robin_follows_the_number_of_the_request() -> None:
    assert [choose("round-robin", [FULL, QUIET, FULL], 0.9, number=n).index for n in range(5)] == [0, 1, 2, 0, 1]


def test_ties_are_broken_by_the_draw() -> None:
    found = [choose("predicted-latency", [FULL, QUIET, FULL, FULL], draw / 100).index for draw in range(100)]
    assert Counter(found) == {0: 34, 2: 33, 3: 33}
    assert {choose("random", [FULL, QUIET], draw).index for draw in (0.0, 0.49)} == {0}
    assert choose("random", [FULL, QUIET], 0.5).index == 1


@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.fallback])
def test_who_has_no_forecast_is_taken_only_where_none_has(policy: str) -> None:
    mute = [replace(FULL, forecast=None), replace(QUIET, forecast=None)]
    choice = choose(policy, [mute[0], QUIET], 0.0)
    assert (choice.index, choice.loads[0], choice.reason) == (1, None, "")
    choice = choose(policy, mute, 0.0)
    assert (choice.index, choice.reason) == (1 if policy == "ours" else 0, "no_forecast")


@claim("A worker that has never run gets a request before any forecast is known of it", of="prediction")
@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.fallback])
def test_an_idle_worker_without_a_forecast_goes_first(policy: str) -> None:
    untried = Candidate(route="m@c", home="c", free_blocks=100, total_blocks=100)
    choice = choose(policy, [FULL, QUIET, untried], 0.0)
    assert (choice.index, choice.loads[2], choice.reason) == (2, None, "")
    choice = choose(policy, [FULL, QUIET, replace(untried, waiting=1, in_flight=1)], 0.0)
    assert choice.index != 2, "its first request has not run yet"
    assert {choose(policy, [untried, FULL, untried], draw).index for draw in (0.0, 0.4, 0.6)} == {0, 2}


def test_standings_go_before_loads_and_a_forecast_says_what_is_late() -> None:
    other = replace(QUIET, route="m~1@b")

    def taken(policy: str, full: Standing, quiet: Standing, first: float = 9.0, **options: Any) -> int:
        standings = {FULL.route: full, other.route: quiet}
        targets = Targets(first)
        return choose(policy, [FULL, other], 0.0, targets=targets, standings=standings, **options).index

    assert taken("predicted-latency", Standing(), Standing(stands_in=True)) == 0
    assert taken("predicted-latency", Standing(), Standing(stands_in=True, owns=True)) == 1
    assert taken("predicted-delay", Standing(), Standing(stands_in=True, rank=1)) == 0, "the listed chain keeps the target"
    assert taken("predicted-latency", Standing(short=5), Standing(stands_in=True, rank=1)) == 1
    late = replace(FULL, forecast=Forecast(9.5, 9.6, 0.0, 0, 40))
    standings = {FULL.route: Standing(), other.route: Standing(stands_in=True, rank=1)}
    assert choose("predicted-ttft", [late, other], 0.0, targets=Targets(9.0), standings=standings).index == 1
    assert taken("llumnix-minus-code", Standing(late=True), Standing(stands_in=True, rank=1)) == 0, "by forecast it is not"
    untried = replace(other, running=0, forecast=None)
    standings[untried.route] = Standing(stands_in=True)
    assert choose("predicted-latency", [FULL, untried], 0.0, standings=standings).index == 1


@claim("Forecasts with poor estimates of lengths are not trusted", of="prediction")
def test_forecasts_by_poor_estimates_are_not_trusted() -> None:
    def estimated(full: float, quiet: float) -> list[Candidate]:
        pairs = ((FULL, full), (QUIET, quiet))
        return [replace(one, forecast=replace(one.forecast, spread=spread)) for one, spread in pairs if one.forecast]

    for full, quiet in ((0.3, 0.3), (0.5, 0.5), (0.9, 0.1), (0.0, 0.0)):
        choice = choose("ours", estimated(full, quiet), 0.0, targets=Targets(1.0, 2.0))
        assert (choice.index, choice.reason) == (0, ""), "its first token would come sooner"
    for full, quiet in ((0.6, 0.6), (1.2, 1e-9), (0.6, 0.0), (0.0, 0.6)):  # 0: too few answers have ended there yet
        choice = choose("ours", estimated(full, quiet), 0.0, targets=Targets(1.0, 2.0))
        assert (choice.index, choice.loads, choice.reason) == (1, [(-0.4,), (-35.0,)], "poor_estimates")
    choice = choose("ours", [estimated(1.2, 0)[0], replace(QUIET, forecast=None)], 0.0)
    assert (choice.index, choice.reason) == (1, "poor_estimates"), "what is counted is known of all"
    assert choose("predicted-latency", estimated(2.0, 2.0), 0.0).reason == "", "the paper's goes by forecasts, always"


def test_an_endless_forecast_is_the_last_choice() -> None:
    endless = Forecast(float("inf"), float("inf"), 0.0, 0, 50_000)
    assert choose("ours", [replace(QUIET, forecast=endless), FULL], 0.0).index == 1
    assert choose("ours", [replace(FULL, forecast=endless), replace(QUIET, forecast=endless)], 0.0).index == 1


def test_ours_takes_the_sooner_end_of_those_that_begin_soon_enough() -> None:
    soon, later = (replace(FULL, forecast=Forecast(first, last, 0.0, 0, 9)) for first, last in ((0.1, 9.0), (0.4, 8.0)))
    assert choose("ours", [soon, later], 0.0, targets=Targets(3.0, 30.0)).index == 1
    assert choose("ours", [soon, later], 0.0, targets=Targets(1.2, 30.0)).index == 0


def test_power_of_k_draws_each_set_equally_often() -> None:
    grid = [step / 12 for step in range(12)]
    found = Counter(tuple(drawn(4, draws)) for draws in product(grid, grid))
    assert found == dict.fromkeys([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 24)
    assert drawn(2, [0.9, 0.9, 0.9]) == [0, 1]
