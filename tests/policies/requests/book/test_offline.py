"""Offline requests at the gateway: sent by credit, held when they are given back, in nobody's way."""

from __future__ import annotations

from blockwright.policies.requests.account import offline_account
from blockwright.policies.requests.admission import YIELDED
from blockwright.policies.requests.book.messages import Fail, GatewayTick, HeartbeatReceived, Submit, WantRoutes
from blockwright.policies.requests.load_failure import LoadFailure
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.urgency import FIRST_OFFLINE
from blockwright.policies.sweep.offline_capacity import OfflineCapacity
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation
from blockwright.tests.policies.requests.book.gateway_bench import (
    Bench,
    chain,
    emitted,
    given_back,
    progressed,
    route,
    submits,
)


def heard(bench: Bench, worker: str, rows: int, positions: int = 1000, room: int = 2000, now: float = 0.0) -> list:
    """A heartbeat that says what the worker takes."""
    serial = bench.serials.get((worker, 1), 0)
    return bench(HeartbeatReceived(worker, 1, serial, [OfflineCapacity(("m",), rows, positions, room)]), now)


def ask(bench: Bench, name: str, prompt: int = 5, **more: object) -> list:
    return bench(generation(name, prompt, offline=True, **{"home": "w0", "side": "left", **more}))


def credit(bench: Bench, worker: str = "w0") -> tuple[int, int]:
    (found,) = [one for one in bench.state.credits("m") if one.worker == worker]
    return found.rows, found.positions


@claim("Offline requests are pulled by credit and never queue in workers", of="offline")
def test_nothing_is_sent_before_a_worker_takes_it_and_then_no_more_than_that() -> None:
    bench = Bench("w0", "w1")
    assert submits(ask(bench, "a") + ask(bench, "b") + ask(bench, "c")) == []
    assert credit(bench) == (0, 0)
    assert submits(heard(bench, "w1", 5)) == [], "they are meant for w0"
    assert submits(heard(bench, "w0", 2)) == [("w0", "a", 1), ("w0", "b", 1)]
    assert submits(heard(bench, "w0", 2)) == [], "the same word: what it takes is on its way"
    assert submits(heard(bench, "w0", 3)) == [("w0", "c", 1)]


def test_credit_is_what_a_worker_takes_less_what_is_on_its_way_and_what_waits_here() -> None:
    bench = Bench("w0")
    heard(bench, "w0", 3, 100)
    assert credit(bench) == (3, 100)
    ask(bench, "a", 10)
    assert credit(bench) == (2, 90)
    bench.report("w0", progressed("a", 1, 0))
    assert credit(bench) == (3, 100), "what has started is in what the worker says next"
    heard(bench, "w0", 1, 40)
    bench.report("w0", given_back("a", 1, YIELDED))
    assert credit(bench) == (0, 30), "it goes first"


def test_what_is_given_back_waits_for_room_and_keeps_its_tokens() -> None:
    bench = Bench("w0")
    heard(bench, "w0", 1, 12)
    assert submits(ask(bench, "a", 10, max_tokens=9)) == [("w0", "a", 1)]
    tokens = [emitted("a", 1, 10 + i, [40 + i]) for i in range(3)]
    assert submits(bench.report("w0", progressed("a", 1, 9), *tokens, given_back("a", 1, YIELDED))) == []
    assert bench.state.parts.active["a"].history.preemptions == 1
    assert submits(heard(bench, "w0", 1, 12)) == [], "it has 13 tokens now"
    (again,) = [effect for effect in heard(bench, "w0", 1, 13) if isinstance(effect, Submit)]
    assert again.submission.attempt == 2
    assert again.submission.tokens == [*range(1, 11), 40, 41, 42]


def test_the_submission_says_class_and_side_and_never_expires() -> None:
    bench = Bench("w0", request_timeout=1.0)
    heard(bench, "w0", 1)
    (sent,) = [effect for effect in ask(bench, "a", side="right", priority=3) if isinstance(effect, Submit)]
    assert sent.submission.priority >= FIRST_OFFLINE
    assert sent.submission.tenant == offline_account("right") == ":right"
    assert sent.submission.timeout == 0.0
    ask(bench, "b")
    assert bench(GatewayTick(), 100.0) == []
    assert bench.state.parts.active.keys() == {"a", "b"}


def test_offline_requests_crowd_nobody_out_and_count_as_no_work() -> None:
    bench = Bench("w0", "w1", max_waiting=1)
    heard(bench, "w0", 8)
    for i in range(6):
        ask(bench, f"o{i}")
    assert submits(bench.generate("n", 5)) == [("w0", "n", 1)], "as if w0 had nothing to do"
    (refused,) = bench.generate("more", 5)
    assert isinstance(refused, Fail)
    assert refused.refused.why is Refusal.OVERLOADED
    assert len(bench.state.credits("m")) == 2


def test_of_a_home_that_died_they_go_where_there_is_room() -> None:
    bench = Bench("w0", "w1")
    heard(bench, "w0", 1)
    heard(bench, "w1", 1)
    assert submits(ask(bench, "a") + ask(bench, "b")) == [("w0", "a", 1)]
    assert submits(bench.die("w0", back=False)) == [("w1", "a", 2)]
    assert submits(heard(bench, "w1", 2)) == [("w1", "b", 1)]
    bench.report("w1", progressed("a", 2, 0), emitted("a", 2, 5, [9], finish="stop"))
    assert bench.state.parts.active.keys() == {"b"}


def test_a_request_that_can_never_fit_is_refused_as_any_other() -> None:
    bench = Bench("w0", chains=[chain(max_length=20)], routes=[route("w0")])
    heard(bench, "w0", 4)
    (refused,) = ask(bench, "a", 30)
    assert isinstance(refused, Fail)
    assert refused.refused.why is Refusal.TOO_LONG


def test_a_model_in_no_worker_is_loaded_for_one_request_and_the_others_follow() -> None:
    bench = Bench("w0", routes=[])
    bench.publish([], on_demand=["m"])
    (one,) = bench.state.credits("m")
    assert (one.worker, one.rows, one.room) == ("", 1, 4096)
    grown = bench.state.growth()
    effects = ask(bench, "a", home="")
    assert [effect.applications for effect in effects if isinstance(effect, WantRoutes)] == [{"m": 9}]
    assert bench.state.credits("m") == [], "it is asked for"
    events = bench.state.parts.usage.report(["m"], 0.0, *bench.wants())["m"]
    assert (events.waits, events.offline) == (9, True)
    bench(generation("b", 5))
    assert not bench.wants()[1], "somebody waits for it"
    bench.publish([route("w0")], on_demand=["m"])
    assert bench.state.growth() > grown, "who drives a batch looks again"
    assert submits(heard(bench, "w0", 3)) == [("w0", "a", 1)]
    assert credit(bench)[0] == 2


def test_lines_of_a_model_that_cannot_be_loaded_fail_with_the_reason_as_others_do() -> None:
    """It is not on demand, so that nobody tries again: without credit they would wait until their batch is over."""
    bench = Bench("w0", routes=[])
    assert bench.state.credits("m") == [], "its workers begin"
    bench.publish([], failed=[LoadFailure("m", 4, "its checkpoint is gone", final=True)])
    (one,) = bench.state.credits("m")
    assert (one.worker, one.rows) == ("", 1)
    (refused,) = ask(bench, "a", home="")
    assert isinstance(refused, Fail)
    assert (refused.refused.in_vain, refused.refused.failure) == (True, 4)
    bench.publish([route("w0")])
    assert [one.worker for one in bench.state.credits("m")] == ["w0"], "it was mended"
