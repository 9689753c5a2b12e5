"""Thousands of requests at one gateway: no event costs work for the whole queue, and none is too deep."""

from __future__ import annotations

from blockwright.policies.requests.book import book, settling
from blockwright.policies.requests.book.messages import CancelAt, Fail, Unsent, WorkerJoined
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.tests.policies.requests.book.gateway_bench import Bench, chain, emitted, progressed, route


def test_withdrawing_a_model_ends_a_thousand_waiting_requests_while_a_suspect_waits() -> None:
    bench = Bench("w0", applications=("m", "n"))
    bench.generate("killer")
    for incarnation in (1, 2):
        bench.report("w0", progressed("killer", incarnation, 1, 0), incarnation=incarnation)
        bench.die("w0", back=incarnation == 1)
    chains = [chain("m"), chain("n")]
    bench.publish([], chains)
    for i in range(1000):
        bench.generate(f"n{i}", application="n", prompt=2)
    assert bench.state.parts.active["killer"].deaths.suspect
    effects = bench(RoutesChanged(1000, chains, [], [], withdrawn=["n"]))
    assert [e.refused.why for e in effects if isinstance(e, Fail)] == [Refusal.UNKNOWN_MODEL] * 1000
    assert set(bench.state.parts.active) == {"killer"}


def test_a_request_given_back_does_not_make_all_others_try_again(monkeypatch) -> None:
    bench = Bench("w0")
    for i in range(300):
        bench.generate(f"r{i}")
    tries = 0
    attempt = settling.try_start

    def counted(*args) -> None:
        nonlocal tries
        tries += 1
        attempt(*args)

    monkeypatch.setattr(settling, "try_start", counted)
    monkeypatch.setattr(book, "try_start", counted)
    for i in range(300):
        bench(Unsent(f"r{i}", 1, "not delivered: the mailbox is full"))
    assert len(bench.state.parts.queue) == 300, "each avoids its only route for a moment"
    assert tries == 300


def test_a_worker_that_goes_on_with_an_old_attempt_is_asked_to_stop() -> None:
    """The submission was taken although its call ran out of time; the request runs elsewhere by now."""
    bench = Bench("w0", "w1")
    bench.generate("a")
    home = bench.state.parts.active["a"].placement.workers[0]
    bench(Unsent("a", 1, "not delivered: no answer within 30 s"))
    other = bench.state.parts.active["a"].placement.workers[0]
    assert other != home
    assert bench.report(home, emitted("a", 1, 5, [10])) == [CancelAt(home, ("a",))]
    assert not any(isinstance(e, CancelAt) for e in bench.report(other, emitted("a", 2, 5, [10])))
    assert route(home).id != bench.state.parts.active["a"].placement.route.id
    bench(WorkerJoined(home, 2))
