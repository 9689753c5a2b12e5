"""Cost of predictors: a worker with its event feed against one without, a replica, and an answer.

    python benchmarks/predictors.py [--quick] [--json PATH]

``sweep``: microseconds of planning and committing a sweep of 64 decoding rows, alone (``us``), and with a feed that is read
sweep by sweep (``fed_us``), including the packing of its message but not its sending. ``replica_us`` is the predictor's time
for the same sweep, reading included. ``ask`` is a dispatcher's query about a worker with 64 running and 64 waiting
sequences, made as in ``benchmarks/forecast.py``, in the process of both: with a forecast and the loss of the others
(``p50_ms``, ``p99_ms``), and without a forecast (``load_ms``, the median).
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import forecast
import harness
from harness import Bar, Options, Report
from sweep import decoding

ROWS = 64
BARS = (Bar("ask/64running-64waiting", "p99_ms", at_most=5.0),)


async def fed(sweeps: int) -> dict[str, float]:
    """Medians."""
    from blockwright.actors.worker.event_feed import EventFeed
    from blockwright.actors.worker.feed_format import read_batch
    from blockwright.policies.plan.sweep_plan import SweepResult
    from blockwright.policies.prediction.replica import Replica

    def step(machine: Any, state: Any) -> float:
        began = time.perf_counter()
        plan = machine.plan(0.0)
        machine.commit(plan, SweepResult(plan.number, [7] * ROWS), 0.0)
        spent = time.perf_counter() - began
        state.take_effects()
        return spent

    alone, state = decoding(ROWS, 4 << 30), decoding(ROWS, 4 << 30)
    feed = EventFeed(state, state, lambda machine: None, lambda: None, asyncio.to_thread)
    batches = feed.follow()
    (began,) = read_batch(await anext(batches))
    replica: Any = Replica(began)  # type: ignore[arg-type]
    spent: dict[str, list[float]] = {"us": [], "fed_us": [], "replica_us": []}
    gc.collect()
    gc.disable()
    for _ in range(sweeps):
        spent["us"].append(1e6 * step(alone, alone))
        calls = step(feed, state)
        packing = time.perf_counter()
        batch = await anext(batches)  # is there at once
        sent = time.perf_counter()
        for entry in read_batch(batch):
            replica.take(entry)
        spent["fed_us"].append(1e6 * (calls + sent - packing))
        spent["replica_us"].append(1e6 * (time.perf_counter() - sent))
    gc.enable()
    assert replica.state.digest() == state.digest(), "the replica differs"
    await batches.aclose()
    return {name: statistics.median(values) for name, values in spent.items()}


async def asked(running: int, waiting: int, states: int) -> dict[str, float]:
    """Milliseconds, over so many workers of which each is asked four times."""
    from blockwright.actors.predictor.actor import Predictor
    from blockwright.actors.predictor.messages import Query
    from blockwright.actors.worker.feed_format import write_batch
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.policies.plan.sweep_plan import SweepResult
    from blockwright.policies.sweep.event_log import Began, Committed
    from blockwright.policies.sweep.feed import Priced, made
    from blockwright.runtime import Actor, Node, endpoint

    class Still(Actor):
        """A worker of which two sweeps are reported."""

        def __init__(self, batch: bytes) -> None:
            self._batch = batch

        @endpoint
        async def feed(self) -> AsyncIterator[bytes]:
            yield self._batch
            await asyncio.Event().wait()

    costs = Coefficients(base=5e-3, token=2e-5, context=1e-8, prefill=1e-8)
    every = list[float]()
    loads = list[float]()
    for seed in range(states):
        state, plan, targets = forecast.worker(running, waiting, seed)
        entries: list[Any] = [Began(state.snapshot()), Priced(costs)]
        result = SweepResult(plan.number, [7] * len(plan.sample))
        state.commit(plan, result, 0.0)
        entries += [Committed(result, 0.0), made(state.plan(0.0), 0.0), made(state.plan(0.0), 0.0)]
        node = Node("w0", listen=False)
        await node.start()
        predictor = Predictor("w0", {})
        await node.spawn(Still(write_batch(entries)), name="worker")
        ref = await node.spawn(predictor, name="predictor-w0")
        while not predictor.figures()["replica"]:  # noqa: ASYNC110 - it comes at once
            await asyncio.sleep(0.001)
        for target in targets:
            for kept, wanted in ((loads, False), (every, True)):
                began = time.perf_counter()
                found = await ref.ask(Query(target, "m@w0", wanted, wanted))
                kept.append(1e3 * (time.perf_counter() - began))
                assert found is not None
                assert (found.running, found.forecast is not None) == (running, wanted), found
        await node.stop()
    return {
        "p50_ms": statistics.median(every),
        "p99_ms": statistics.quantiles(every, n=100)[98],
        "load_ms": statistics.median(loads),
    }


@harness.claim("A forecast at 64 running and 64 waiting requests takes less than 5 ms", of="prediction")
def main(options: Options) -> None:
    report = Report("predictors", {}, ())
    for _ in range(1 if options.quick else 3):
        report.add(f"sweep/{ROWS}rows", harness.OURS, asyncio.run(fed(200 if options.quick else 1000)))
        report.add("ask/64running-64waiting", harness.OURS, asyncio.run(asked(64, 64, 10 if options.quick else 50)))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
