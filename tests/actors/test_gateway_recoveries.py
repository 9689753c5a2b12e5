"""What the log says of the requests of a worker that died."""

from __future__ import annotations

import pytest

from blockwright.actors.gateway.recoveries import Recoveries
from blockwright.tests.actors.gateway_bench import Bench, emitted, progressed


def test_they_are_told_once_all_of_them_run_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blockwright.actors.gateway.recoveries")
    bench = Bench("w0", "w1")
    recoveries = Recoveries(bench.state.active)
    for name in ("a", "b", "c", "d"):  # by turns on w0 and w1
        bench.generate(name)
    here = [record.id for record in bench.state.active.values() if record.workers == ("w0",)]
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


def test_what_ends_meanwhile_is_told_apart() -> None:
    bench = Bench("w0")
    recoveries = Recoveries(bench.state.active)
    for name in ("a", "b"):
        bench.generate(name)
    recoveries.lost("w0", "hung", 1.0)
    bench.die("w0", now=1.0)
    record = bench.state.active["a"]
    bench.report("w0", emitted("a", record.attempt, len(record.tokens), [5], finish="stop"), incarnation=2, now=1.5)
    assert recoveries.tick() == []
    bench.state._end("b", False, 2.0)
    told = "after the death of w0: 1 request moved to w0, the last after 0.50 s; 1 ended before it ran again"
    assert recoveries.tick() == [("w0", told)]


def test_a_death_that_no_request_noticed_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="blockwright.actors.gateway.recoveries")
    recoveries = Recoveries({})
    recoveries.lost("w0", "exited -9", 1.0)
    assert recoveries.tick() == []
    assert caplog.messages == []


def test_what_the_lost_attempt_told_is_no_sign_that_a_request_runs_again() -> None:
    """It ran on the worker that died, and had told so: only a later attempt counts, and when that has resumed."""
    bench = Bench("w0")
    recoveries = Recoveries(bench.state.active)
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
