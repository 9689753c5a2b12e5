"""A worker begins to serve: what waits at another one, and was not begun, goes there."""

from __future__ import annotations

from typing import Any

from blockwright.policies.requests.book.messages import CancelAt, HeartbeatReceived, WorkerJoined
from blockwright.policies.sweep.events import Submission
from blockwright.tests.policies.requests.book.gateway_bench import (
    Bench,
    chain,
    delivered,
    emitted,
    preempted,
    progressed,
    route,
    submits,
)

LONG = 100  # tokens of an answer


def fallen(count: int, **options: Any) -> Bench:
    """All requests are at w0 since w1 died; a runs there, and nobody else has been begun."""
    bench = Bench("w0", "w1", **options)
    for index in range(count):
        bench.generate("abcdefgh"[index], max_tokens=LONG)
    bench.die("w1", back=False)
    if count:
        bench.report("w0", progressed("a", 1, 5), emitted("a", 1, 5, [10]))
    return bench


def back(bench: Bench, now: float = 1.0) -> list[Any]:
    return bench(WorkerJoined("w1", 2), now) + bench.publish([route("w0"), route("w1")], now=now)


def test_the_replacement_takes_what_the_survivor_has_not_begun() -> None:
    bench = fallen(4)
    effects = back(bench)
    assert submits(effects) == [("w1", "b", 3), ("w1", "d", 3)], "w0 has a and c, dealt in the order of arrival"
    assert [e for e in effects if isinstance(e, CancelAt)] == [CancelAt("w0", ("b",)), CancelAt("w0", ("d",))]
    values = {"source": "w0", "target": "w1", "reason": "another worker serves, with less to do"}
    events = bench.state.describe("b").events
    assert [{key: event[key] for key in values} for event in events if event["event"] == "rerouted"] == [values]


def test_it_is_the_same_request_and_what_the_survivor_did_meanwhile_does_not_count() -> None:
    bench = fallen(4)
    (submission,) = [e.submission for e in back(bench) if getattr(e, "submission", None) and e.submission.request == "b"]
    assert isinstance(submission, Submission)
    assert (submission.tokens, submission.sampling.seed, submission.arrival) == ([1, 2, 3, 4, 5], 7, 0.0)
    late = bench.report("w0", progressed("b", 2, 5), emitted("b", 2, 5, [10]))
    assert late == [CancelAt("w0", ("b",))], "it had begun before the cancellation came"
    assert bench.report("w1", emitted("b", 3, 5, [10]), incarnation=2) == [delivered("b", 3, 5, [10])]
    assert bench.state.parts.active["b"].deaths.present == 0


def test_who_runs_stays_and_who_was_preempted_leaves() -> None:
    bench = fallen(3)
    bench.report("w0", progressed("b", 2, 5), emitted("b", 2, 5, [10]), progressed("c", 1, 5), emitted("c", 1, 5, [10]))
    bench.report("w0", preempted("c"))
    assert submits(back(bench)) == [("w1", "c", 2)]
    assert bench.state.parts.active["c"].progress.tokens == [1, 2, 3, 4, 5, 10]


def test_who_has_tokens_leaves_once_the_replacement_has_said_its_numerics() -> None:
    bench = fallen(0)
    bench(HeartbeatReceived("w0", 1, 0, numerics="n"))
    for request in "abc":
        bench.generate(request, max_tokens=LONG)
        bench.report("w0", progressed(request, 1, 5), emitted(request, 1, 5, [10]))
    bench.report("w0", preempted("b"), preempted("c"))
    assert submits(back(bench)) == []
    assert submits(bench(HeartbeatReceived("w1", 2, 1, numerics="n"), 1.5)) == [("w1", "b", 2)]
    assert submits(bench(HeartbeatReceived("w1", 2, 2, numerics="n"), 2.0)) == [], "that is no news"


def test_a_suspect_stays_where_it_is_alone() -> None:
    """It waits at a worker that nobody else may use: its rule is another one."""
    bench = fallen(0)
    bench.generate("s", max_tokens=LONG)
    for _ in range(2):
        life, attempt = bench.state.parts.workers.incarnation("w0"), bench.state.parts.active["s"].placement.attempt
        bench.report("w0", progressed("s", attempt, 5), incarnation=life)
        bench.die("w0", now=1.0)
    record = bench.state.parts.active["s"]
    assert record.placement.alone
    assert not record.progress.planned
    attempt = record.placement.attempt
    assert submits(back(bench)) == []
    assert (record.placement.workers, record.placement.attempt) == (("w0",), attempt)


def test_routes_of_others_move_nobody_and_one_opens_once() -> None:
    bench = Bench("w0", "w1", applications=("m", "n"), routes=[route("w0"), route("w0", application="n")])
    for request in "abc":
        bench.generate(request, max_tokens=LONG)
    bench.report("w0", progressed("a", 1, 5))
    routes = [route("w0"), route("w0", application="n"), route("w1", application="n")]
    assert submits(bench.publish(routes, [chain("m"), chain("n")])) == []
    routes.append(route("w1"))
    assert submits(bench.publish(routes, [chain("m"), chain("n")])) == [("w1", "b", 2)]
    bench.generate("d", max_tokens=1)
    assert submits(bench.publish(routes, [chain("m"), chain("n")])) == []
