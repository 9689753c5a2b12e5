"""Views of one request, of all requests, and of the requests of a worker that died."""

from __future__ import annotations

import pytest

from blockwright.actors.gateway.request_views import Recoveries, described, listed
from blockwright.policies.requests.book.messages import End
from blockwright.policies.requests.book.queue_position import QueuePositions
from blockwright.policies.requests.request_ownership import Viewer
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted, preempted, progressed


@claim("`/v1/requests` lists requests with their place, prefill and worker", of="http-api")
def test_who_has_not_been_planned_waits_at_a_place_with_a_forecast() -> None:
    bench = Bench("w0")
    positions = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    for number, name in enumerate("abc"):
        bench.generate(name, now=float(number))
    view = described(bench.state, positions, "b", 3.0)
    assert view is not None
    assert (view.state, view.home, view.place, view.queued, view.starts_in) == ("waiting", "w0", 2, 3, None)
    for number, name in enumerate(("x", "y")):  # two requests end, one in two seconds
        bench.generate(name, now=3.0)
        record = bench.state.parts.active[name]
        at = 4.0 + 2 * number
        bench.report("w0", emitted(name, 1, len(record.progress.tokens), [5], finish="stop"), now=at)
    view = described(bench.state, positions, "b", 8.0)
    assert view is not None
    assert (view.place, view.starts_in) == (2, 4.0)
    bench.report("w0", progressed("b", 1, 1), now=8.0)
    view = described(bench.state, positions, "b", 8.0)
    assert view is not None
    assert (view.state, view.place, view.starts_in) == ("running", 0, None)
    assert described(bench.state, positions, "nobody", 8.0) is None
    ended = described(bench.state, positions, "x", 8.0)
    assert ended is not None
    assert (ended.state, ended.model) == ("finished", "m")


def test_who_has_lost_its_worker_waits_until_another_has_planned_it() -> None:
    bench = Bench("w0", "w1")
    positions = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    bench.generate("a")
    record = bench.state.parts.active["a"]
    first = record.placement.workers[0]
    bench.report(first, emitted("a", 1, len(record.progress.tokens), [5]), now=1.0)
    bench.die(first, now=2.0, back=False)
    view = described(bench.state, positions, "a", 3.0)
    assert view is not None
    assert (view.state, view.attempt, view.place, view.starts_in) == ("waiting", 2, 0, None)
    assert listed(bench.state, positions, Viewer(), 9, 3.0)[0].state == "waiting"
    bench.report(record.placement.workers[0], progressed("a", 2, 1), now=4.0)
    assert listed(bench.state, positions, Viewer(), 9, 4.0)[0].state == "running"


def test_a_preempted_request_waits_until_its_worker_has_begun_it_again() -> None:
    bench = Bench("w0")
    positions = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    bench.generate("a")
    seen = []
    for news in (
        progressed("a", 1, 0),
        emitted("a", 1, len(bench.state.parts.active["a"].progress.tokens), [5]),
        preempted("a"),
        progressed("a", 1, 0),
    ):
        bench.report("w0", news, now=1.0)
        view = described(bench.state, positions, "a", 1.0)
        assert view is not None
        assert view.state == listed(bench.state, positions, Viewer(), 9, 1.0)[0].state
        seen.append((view.state, view.place))
    assert seen == [("running", 0), ("running", 0), ("waiting", 0), ("running", 0)]


def test_the_latest_first_and_those_of_the_key_alone() -> None:
    bench = Bench("w0")
    positions = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    for name in "abc":
        bench.generate(name, now=1.0)
    bench.generate("other", now=1.0, key="k")
    bench.report("w0", progressed("b", 1, 1), now=2.0)
    record = bench.state.parts.active["c"]
    bench.report("w0", emitted("c", 1, len(record.progress.tokens), [5], finish="stop"), now=3.5)
    lines = listed(bench.state, positions, Viewer(), 10, 4.0)
    assert [(line.id, line.state, line.age) for line in lines] == [
        ("b", "running", 3.0),
        ("a", "waiting", 3.0),
        ("c", "finished", 2.5),
    ]
    assert lines[1].place == 1
    assert [line.id for line in listed(bench.state, positions, Viewer(), 2, 4.0)] == ["b", "a"]
    assert [line.id for line in listed(bench.state, positions, Viewer("k"), 9, 4.0)] == ["other"]
    everything = listed(bench.state, positions, Viewer("root", everything=True), 9, 6.0)
    assert [(line.id, line.ended) for line in everything] == [("other", None), ("b", None), ("a", None), ("c", 2.5)]


def test_recoveries_are_logged_once_all_of_them_run_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blockwright.actors.gateway.request_views")
    bench = Bench("w0", "w1")
    recoveries = Recoveries(bench.state.parts.active)
    for name in ("a", "b", "c", "d"):  # by turns on w0 and w1
        bench.generate(name)
    here = [record.id for record in bench.state.parts.active.values() if record.placement.workers == ("w0",)]
    assert len(here) == 2
    bench.report("w0", *(progressed(name, 1, 2) for name in here))
    recoveries.lost("w0", "exited -9", 10.0)
    bench.die("w0", now=10.0, back=False)
    assert caplog.messages == ["w0 died (exited -9); requests that ran there: 2"]
    assert recoveries.tick() == []
    bench.report("w1", progressed(here[0], 2, 2), now=10.1)
    assert recoveries.tick() == [], "one of them waits still"
    bench.report("w1", progressed(here[1], 2, 2), now=10.25)
    assert recoveries.tick() == [("w0", "after the death of w0: 2 requests moved to w1, the last after 0.25 s")]
    assert recoveries.tick() == []


def test_a_request_that_ends_meanwhile_is_counted_apart() -> None:
    bench = Bench("w0")
    recoveries = Recoveries(bench.state.parts.active)
    for name in ("a", "b"):
        bench.generate(name)
    recoveries.lost("w0", "hung", 1.0)
    bench.die("w0", now=1.0)
    record = bench.state.parts.active["a"]
    bench.report(
        "w0", emitted("a", record.placement.attempt, len(record.progress.tokens), [5], finish="stop"), incarnation=2, now=1.5
    )
    assert recoveries.tick() == []
    bench(End("b"), 2.0)
    message = "after the death of w0: 1 request moved to w0, the last after 0.50 s; 1 ended before it ran again"
    assert recoveries.tick() == [("w0", message)]


def test_a_death_that_no_request_noticed_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blockwright.actors.gateway.request_views")
    recoveries = Recoveries({})
    recoveries.lost("w0", "exited -9", 1.0)
    assert recoveries.tick() == []
    assert caplog.messages == []


def test_reports_of_the_lost_attempt_are_no_sign_that_a_request_runs_again() -> None:
    """It ran on the worker that died, and was reported: only a later attempt counts, and when that has resumed."""
    bench = Bench("w0")
    recoveries = Recoveries(bench.state.parts.active)
    bench.generate("a")
    bench.report("w0", progressed("a", 1, 2), now=1.0)
    recoveries.lost("w0", "exited -9", 2.0)
    assert recoveries.tick() == [], "the attempt that is lost has planned"
    bench.die("w0", now=2.0)
    bench.report("w0", progressed("a", 2, 2), incarnation=2, now=5.0)
    recoveries.lost("w0", "exited -9", 6.0)
    bench.die("w0", now=6.0)
    bench.report("w0", progressed("a", 3, 2), incarnation=3, now=6.5)
    assert recoveries.tick() == [
        ("w0", "after the death of w0: 1 request moved to w0, the last after 3.00 s"),
        ("w0", "after the death of w0: 1 request moved to w0, the last after 0.50 s"),
    ]
