"""Places in the queue, prefill and reasons, as a client sees them."""

from blockwright.actors.gateway.port import Census, StreamProgress
from blockwright.policies.requests.book.messages import WorkerEnded
from blockwright.policies.requests.book.queue_position import FRESH, QueuePositions
from blockwright.tests.fake_cluster import generation
from blockwright.tests.policies.requests.book.gateway_bench import Bench, emitted, preempted, progressed


def test_a_request_from_its_place_in_the_queue_to_its_end():
    bench = Bench("w0")
    queue = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    for name, priority in (("a", 0), ("b", 5), ("c", -5)):
        bench(generation(name, prompt=20, priority=priority), 1.0)
    records = dict(bench.state.parts.active)
    assert {n: (p.place, p.queued) for n, r in records.items() if (p := queue.progress(r, 1.0))} == {
        "a": (2, 3), "b": (3, 3), "c": (1, 3),
    }  # fmt: skip
    bench.report("w0", progressed("c", 1, 16, 16), now=3.0)
    bench.report("w0", progressed("c", 1, 18, 16), preempted("c"), now=4.0)
    now = queue.progress(records["c"], 4.0)
    assert now == StreamProgress(prompt=20, computed=18, cached=16, queue_seconds=2.0, preemptions=1, tier="m", placed=True)
    assert queue.progress(records["b"], 1.0).place == 3, "places are not counted anew for each look"
    assert (queue.progress(records["b"], 1.0 + FRESH).place, queue.progress(records["b"], 4.0).queued) == (2, 2)
    bench.report("w0", emitted("c", 1, 20, [7, 8, 9, 10], finish="length"), now=5.0)
    assert "c" not in bench.state.parts.active
    assert queue.progress(records["c"], 9.0).place == 0


def test_a_look_at_a_request_that_came_just_now_finds_its_place():
    bench = Bench("w0")
    queue = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    bench(generation("a"), 1.0)
    assert queue.progress(bench.state.parts.active["a"], 1.0).place == 1
    bench(generation("b"), 1.0)
    assert queue.progress(bench.state.parts.active["b"], 1.0).place == 2


def test_reasons():
    bench = Bench("w0")
    queue = QueuePositions(bench.state.parts.active, bench.state.parts.table)
    for name in "abc":
        bench.generate(name)
    bench.report("w0", progressed("a", 1, 5, 0))
    assert queue.census() == queue.tenants() == {"m": Census(1, {"capacity": 2})}
    bench.report("w0", preempted("a"))
    assert queue.census() == {"m": Census(0, {"capacity": 3})}, "who was preempted waits"
    bench.report("w0", progressed("a", 1, 0, 0))
    assert queue.census() == {"m": Census(1, {"capacity": 2})}, "it has begun again"
    bench(WorkerEnded("w0", 1, "killed"))
    assert queue.census() == {"m": Census(0, {"no_worker": 3})}
    for _ in range(2):
        bench.state.parts.active["a"].deaths.count(present=True)
    bench.publish([])
    assert queue.census()["m"].waiting == {"no_worker": 3}
