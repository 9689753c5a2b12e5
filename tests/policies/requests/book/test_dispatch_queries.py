"""Requests that a dispatcher is asked about: they start once, where it says if that is open, and never wait for it alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.prediction.candidate import Candidate, Forecast
from blockwright.policies.requests.book.dispatch_messages import Ask, Chosen
from blockwright.policies.requests.book.messages import (
    CancelAt,
    Closed,
    Drain,
    End,
    Fail,
    GatewayTick,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import ServingCluster
from blockwright.tests.parts import examples
from blockwright.tests.policies.requests.book.gateway_bench import (
    Bench,
    emitted,
    gateway,
    given_back,
    progressed,
    route,
    submits,
)
from blockwright.tests.policies.requests.book.test_chaos import TRIO, ask, assert_exact, troubled

CANDIDATES = [
    Candidate(route="m@w0", home="w0", running=1, free_blocks=9, total_blocks=10, forecast=Forecast(0.5, 4.0, 1.0, 0, 9)),
    Candidate(route="m@w1", home="w1", running=2, free_blocks=8, total_blocks=10, forecast=Forecast(0.25, 2.0, 0.5, 1, 9)),
]


def asks(effects: list[Any]) -> list[Ask]:
    return [effect for effect in effects if isinstance(effect, Ask)]


def bench(*workers: str, **options: Any) -> Bench:
    return Bench(*(workers or ("w0", "w1")), asks=True, **options)


def chosen(route: str = "m@w1", request: str = "r", attempt: int = 1, **more: Any) -> Chosen:
    return Chosen(request=request, attempt=attempt, route=route, policy="ours", candidates=CANDIDATES,
                  loads=[[5.0, -9.0], [2.5, -4.0]], **more)  # fmt: skip


def test_where_several_routes_fit_it_is_asked_about_and_starts_where_the_dispatcher_says() -> None:
    made = bench()
    (question,) = made.generate(prompt=9, now=1.0)
    assert isinstance(question, Ask)
    assert question.routes == {"m@w0": ["w0"], "m@w1": ["w1"]}
    assert (question.submission.attempt, question.submission.route, len(question.submission.tokens)) == (1, "", 9)
    view = made.state.describe("r")
    assert (view.state, view.home, [event["event"] for event in view.events]) == ("waiting", None, ["arrived"])
    assert made(GatewayTick(), now=1.1) == [], "asked once"
    (submit,) = made(chosen(), now=1.25)
    assert (submit.worker, submit.submission.route, submit.submission.attempt) == ("w1", "m@w1", 1)
    assert made(chosen(), now=1.3) == [], "a second answer"
    shown = made.state.describe("r").events[1]
    assert shown == {"at": 0.25, "event": "asked", "seconds": 0.25, "policy": "ours", "fell_back": "", "candidates": 2}


def test_one_route_and_the_setting_outstanding_ask_nobody() -> None:
    assert submits(bench("w0").generate()) == [("w0", "r", 1)]
    assert submits(Bench("w0", "w1").generate()) == [("w0", "r", 1)]
    alone = bench("w0")
    alone.state.parts.asking.alone = True  # whoever provisions wants to know the forecast
    (question,) = alone.generate()
    assert isinstance(question, Ask)
    made = bench(capacity={"m@w0": 50, "m@w1": 100})
    assert submits(made.generate(prompt=60)) == [("w1", "r", 1)], "the other cannot hold it"


@pytest.mark.parametrize("reason", ["dispatcher_late", "dispatcher_dead"])
def test_without_a_dispatcher_the_gateway_chooses_and_counts_it(reason: str) -> None:
    made = bench()
    made.generate()
    assert submits(made(Chosen(request="r", attempt=1, reason=reason))) == [("w0", "r", 1)]
    assert made.state.parts.asking.figures.fallbacks == {reason: 1}
    assert made.state.describe("r").dispatch["fell_back"] == reason


def test_a_choice_that_is_not_open_any_more_counts_as_none() -> None:
    made = bench("w0", "w1", "w2")
    made.generate()
    made(WorkerEnded("w1", 1))
    assert submits(made(chosen("m@w1"))) == [("w0", "r", 1)]
    assert made.state.parts.asking.figures.fallbacks == {"route_gone": 1}
    made(End("r"))
    made.generate("s")
    for worker in ("w0", "w2"):
        made(WorkerEnded(worker, 1))
    assert made(chosen("m@w0", "s")) == [], "there is no route at all: it waits as any other"
    assert made.state.describe("s").state == "waiting"
    made(WorkerJoined("w2", 2))
    assert submits(made.publish([route("w2")])) == [("w2", "s", 1)]


def test_a_question_is_over_with_its_request() -> None:
    made = bench(request_timeout=10.0)
    made.generate("gone")
    assert made(End("gone")) == [Closed("gone")]
    made.generate("late")
    (fail,) = made(GatewayTick(), now=11.0)
    assert fail.refused.why is Refusal.EXPIRED
    made.generate("model", now=12.0)
    (fail,) = made(RoutesChanged(9, [], [], [], withdrawn=["m"]), now=12.0)
    assert fail.refused.why is Refusal.UNKNOWN_MODEL
    for name in ("gone", "late", "model"):
        assert made(chosen(request=name)) == []
    made = bench()
    made.generate()
    (fail,) = made(Drain(now=True))
    assert isinstance(fail, Fail)
    assert not made.state.parts.asking.open


def test_a_retry_after_a_death_is_asked_about_again_from_the_tokens_that_are_there() -> None:
    made = bench("w0", "w1", "w2")
    made.generate()
    made(chosen("m@w1"))
    made.report("w1", emitted("r", 1, 5, [8, 9]))
    (question,) = asks(made(WorkerEnded("w1", 1)))
    assert question.routes.keys() == {"m@w0", "m@w2"}
    assert (question.submission.attempt, question.submission.tokens[-2:]) == (2, [8, 9])
    assert made(chosen("m@w0", attempt=1)) == [], "of the attempt before"
    assert submits(made(chosen("m@w2", attempt=2))) == [("w2", "r", 2)]


def test_a_route_that_gave_a_request_back_is_no_candidate_for_a_moment() -> None:
    made = bench("w0", "w1", "w2")
    made.generate()
    made(chosen("m@w1"))
    (question,) = asks(made.report("w1", given_back("r", 1, "route")))
    assert question.routes.keys() == {"m@w0", "m@w2"}
    assert submits(made(chosen("m@w1", attempt=2))) == [("w0", "r", 2)], "avoided, whatever the dispatcher says"


def test_a_suspect_runs_alone_and_nobody_is_asked_about_it() -> None:
    made = bench("w0", "w1")
    made.generate("r")
    made(chosen("m@w1"))
    for attempt, home in ((1, "w1"), (2, "w0")):
        made.report(home, progressed("r", attempt, 1, 0), incarnation=made.state.parts.workers.incarnation(home))
        effects = made.die(home)
        if attempt == 1:
            assert submits(effects) == [("w0", "r", 2)], "the only one left"
    assert made.state.parts.active["r"].deaths.suspect
    assert not made.state.parts.asking.open
    home = made.state.parts.active["r"].placement.workers[0]
    other = ({"w0", "w1"} - {home}).pop()
    assert submits(made.generate("s")) == [(other, "s", 1)], "one route is open beside the suspect's"


def test_what_a_suspect_has_closed_meanwhile_is_not_taken() -> None:
    made = bench("w0", "w1")
    made.generate("r")
    made(chosen("m@w1"))
    made.report("w1", progressed("r", 1, 1, 0))
    made.die("w1")
    made.report("w0", progressed("r", 2, 1, 0))
    made.generate("s")
    assert made.state.parts.asking.open.keys() == {"s"}
    made.die("w0")
    (home,) = made.state.parts.active["r"].placement.workers
    other = ({"w0", "w1"} - {home}).pop()
    assert submits(made(chosen(f"m@{home}", "s"))) == [(other, "s", 1)]
    assert made.state.parts.asking.figures.fallbacks == {"route_gone": 1}


# explained


@claim("A request shows its candidates, forecasts, choice and outcome", of="prediction")
def test_the_view_shows_candidates_the_choice_and_what_came_of_it() -> None:
    made = bench()
    made.generate(max_tokens=3, now=1.0)
    made(chosen(rank=1, ranked=3, unanswered={"late": 1}), now=1.5)
    made.report("w1", emitted("r", 1, 5, [8]), now=1.75)
    half = made.state.describe("r").dispatch
    assert (half["actual"], half["error"]) == ({"first_token": 0.75, "last_token": None}, None)
    made.report("w1", emitted("r", 1, 6, [8, 9], finish="length"), now=2.0)
    view = made.state.describe("r").dispatch
    assert (view["at"], view["seconds"], view["policy"], view["route"], view["fell_back"]) == (0.0, 0.5, "ours", "m@w1", "")
    assert [candidate["route"] for candidate in view["candidates"]] == ["m@w1", "m@w0"], "the one taken comes first"
    assert view["candidates"][0]["load"] == [2.5, -4.0]
    assert view["candidates"][0]["forecast"] == {"first_token": 0.25, "last_token": 2.0, "delayed": 0.5, "preemptions": 1}
    assert view["actual"] == {"first_token": 0.75, "last_token": 1.0}
    assert view["error"] == {"first_token": pytest.approx(2 / 3), "last_token": 1.0}
    figures = made.state.parts.asking.figures
    assert (figures.first_token_error.total, figures.latency_error.total) == (pytest.approx(2 / 3), 1.0)
    assert (figures.rank.total, figures.asked.total, figures.unanswered) == (1, 0.5, {"late": 1})
    (point,) = figures.points
    assert (point.predicted_first_token, point.first_token, point.predicted_last_token, point.last_token) == (
        0.25,
        0.75,
        2.0,
        1.0,
    )


def test_what_is_never_to_end_is_reported_in_json_and_no_point() -> None:
    made = bench()
    made.generate(max_tokens=1, now=1.0)
    never = Candidate(route="m@w1", home="w1", forecast=Forecast(float("inf"), float("inf"), 0.0, 0, 0))
    made(Chosen(request="r", attempt=1, route="m@w1", candidates=[never], loads=[[float("inf")]]), now=1.0)
    made.report("w1", emitted("r", 1, 5, [8], finish="length"), now=2.0)
    view = made.state.describe("r").dispatch
    json.dumps(view, allow_nan=False)
    assert view["candidates"][0]["forecast"]["last_token"] is None
    assert not made.state.parts.asking.figures.points
    assert made.state.parts.asking.figures.latency_error.counts[-1] == 1


def test_an_end_before_its_time_says_nothing_of_forecasts() -> None:
    made = bench()
    made.generate(now=1.0)
    made(chosen())
    made.report("w1", emitted("r", 1, 5, [8]), now=1.5)
    assert CancelAt("w1", ("r",)) in made(End("r"), now=2.0)
    assert made.state.describe("r").dispatch["error"] is None
    assert not any(made.state.parts.asking.figures.latency_error.counts)


# whatever happens


class Asked(ServingCluster):
    """Dispatchers answer at some time, with any route, in any order, late or not at all."""

    def __init__(self, seed: int) -> None:
        self.questions: list[Ask] = []
        super().__init__(seed, gateway(asks=True), *TRIO, drop=0.2, double=0.2)

    def perform(self, effect: object) -> None:
        if isinstance(effect, Ask):
            self.questions.append(effect)
        else:
            super().perform(effect)

    def step(self) -> None:
        super().step()
        while self.questions and self.random.random() < 0.6:
            question = self.questions.pop(self.random.randrange(len(self.questions)))
            said, attempt = question.submission.request, question.submission.attempt
            to = self.random.choice([*question.routes, "m@w0", "m@nowhere", ""])
            for _ in range(self.random.choice((1, 1, 2))):
                self.feed(Chosen(request=said, attempt=attempt, route=to, reason="" if to else "dispatcher_late"))


@examples(60)
@given(seed=st.integers(0, 2**32))
def test_random_answers_kills_and_losses_leave_every_stream_exact(seed: int) -> None:
    cluster = Asked(seed)
    asked = ask(cluster, 8)
    troubled(cluster)
    assert_exact(cluster, asked)
    assert not cluster.book.parts.asking.open
    assert sum(cluster.book.parts.asking.figures.asked.counts) > 0


def test_the_least_forecast_and_the_longest_request_are_reported_to_the_provisioner() -> None:
    made = bench()
    made.generate(prompt=9, now=1.0)
    made(chosen(), now=1.25)
    seen = made.state.parts.asking.observations
    assert seen.take(0.5) == (0.5, 2.0), "the age of the oldest; the forecast at w1"
    assert seen.take(0.0) is None
    made(End("r"), now=4.0)
    assert seen.take(0.5) == (3.0, 0.0)
