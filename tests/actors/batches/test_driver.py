"""The loop of an offline job: credit in, placed requests out; what cannot be answered now is placed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from blockwright.actors.batches.driver import Answering, FeedDriver
from blockwright.actors.batches.port import Answered, RetryLater
from blockwright.actors.gateway.port import Credit, GatewayPort
from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest, PlacedRequest
from blockwright.policies.offline.prefix_tree import packed
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.runtime.base.clock import ManualClock
from blockwright.tests.waiting import until

COSTS = Costs(token=1e-3, attend=0.0, read=1e-5)


class CreditPort:
    """Workers with so many rows; a request holds one from when it is sent until it ends."""

    def __init__(self, **rows: int) -> None:
        self.rows = rows
        self.costs: Coefficients | None = None
        self.grown = asyncio.Event()

    def credits(self, application: str) -> list[Credit]:
        assert application == "tiny"
        return [
            Credit(worker=name, rows=rows, positions=1000, room=1000, costs=self.costs) for name, rows in self.rows.items()
        ]

    async def credit_grown(self) -> None:
        await self.grown.wait()
        self.grown.clear()

    def grow(self, **rows: int) -> None:
        self.rows = rows
        self.grown.set()


class Bench:
    """A job, and a server that answers each request when the test asks for it."""

    def __init__(self, port: CreditPort, count: int, sampled: tuple[int, ...] = ()) -> None:
        self.port, self.clock = port, ManualClock()
        self.running: dict[int, asyncio.Future[Answered]] = {}
        self.placed: list[PlacedRequest] = []
        requests = [OfflineRequest(prompt=packed([1] * 8 + [100 + n]), limit=4) for n in range(count)]
        draws = [0.0 if n in sampled else 1.0 for n in range(count)]
        self.feed = OfflineFeed(requests, COSTS, draws=draws, share=0.01 if sampled else 0.0)
        self.driver = self.made(self.answer)

    def made(self, answer: Answering) -> FeedDriver:
        return FeedDriver(cast(GatewayPort, self.port), "tiny", self.feed, answer, self.clock)

    async def answer(self, placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
        self.placed.append(placed)
        sent()
        self.port.rows[placed.worker] -= placed.sequences
        ended = self.running[placed.request] = asyncio.get_running_loop().create_future()
        try:
            return await ended
        finally:
            del self.running[placed.request]
            if placed.worker in self.port.rows:
                self.port.rows[placed.worker] += placed.sequences

    def end(self, request: int) -> None:
        self.running[request].set_result(Answered(2, cached=8))


async def test_as_many_run_as_there_is_credit_for_and_all_end() -> None:
    bench = Bench(CreditPort(w0=2, w1=1), count=7)
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: len(bench.running) == 3)
    assert sorted(one.worker for one in bench.placed) == ["w0", "w0", "w1"]
    while not running.done():
        for request in [*bench.running]:
            bench.end(request)
        await asyncio.sleep(0)
        assert len(bench.running) <= 3
    await running
    assert sorted(one.request for one in bench.placed) == [*range(7)]
    assert bench.driver.progress().done == 7


async def test_what_is_placed_and_not_sent_counts_against_the_credit() -> None:
    bench, gate = Bench(CreditPort(w0=2), count=5), asyncio.Event()

    async def slow(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
        bench.placed.append(placed)
        await gate.wait()  # it is tokenized, say
        sent()
        return Answered(1)

    driver = bench.made(slow)
    running = asyncio.create_task(driver.run())
    await until(lambda: bench.placed)
    for _ in range(5):
        bench.port.grown.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(bench.placed) == 2
    gate.set()
    await running
    assert len(bench.placed) == 5


async def test_a_worker_that_comes_is_used_and_one_that_goes_is_not() -> None:
    bench = Bench(CreditPort(w0=1), count=6)
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: len(bench.running) == 1)
    bench.port.grow(w0=0, w1=2)
    await until(lambda: len(bench.running) == 3)
    bench.port.grow(w1=0)  # what ran on the other one runs on elsewhere
    await until(lambda: bench.feed.workers == frozenset({"w1"}))
    while not running.done():
        for request in [*bench.running]:
            bench.end(request)
        await asyncio.sleep(0)
    await running
    assert {one.worker for one in bench.placed[3:]} == {"w1"}
    assert sorted(one.request for one in bench.placed) == [*range(6)]


async def test_what_cannot_be_answered_now_is_placed_again_later() -> None:
    bench = Bench(CreditPort(w0=1), count=2)
    asked: list[int] = []

    async def busy_once(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
        asked.append(placed.request)
        if len(asked) == 1:
            raise RetryLater("no room", 3.0)
        return Answered(1)

    driver = bench.made(busy_once)
    running = asyncio.create_task(driver.run())
    await until(lambda: asked)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(asked) == 1, "nothing is placed before its time"
    bench.clock.advance(3.0)
    await running
    assert asked[1] == asked[0]
    assert driver.progress().given_back == 1


async def test_samples_and_measured_costs_lead_to_a_new_order() -> None:
    bench = Bench(CreditPort(w0=1), count=6, sampled=(2,))
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: bench.running)
    assert [*bench.running] == [2]
    bench.port.costs = Coefficients(token=1e-2)  # no positions were read yet: no density comes of it
    before = bench.driver.progress().density
    bench.end(2)
    await until(lambda: len(bench.placed) == 2 and not bench.feed.stale)
    sampled = bench.driver.progress().density
    assert sampled > before, "answers are shorter than their limit"
    bench.port.costs = Coefficients(token=1e-2, context=1e-5)
    bench.end(bench.placed[1].request)
    await until(lambda: bench.driver.progress().density > 5 * sampled)
    bench.driver.stop(cancel=True)
    await running


async def test_stopped_it_ends_when_what_runs_has_ended() -> None:
    bench = Bench(CreditPort(w0=2), count=5)
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: len(bench.running) == 2)
    bench.driver.stop()
    for request in [*bench.running]:
        bench.end(request)
    await running
    assert bench.driver.progress().done == 2
    assert len(bench.placed) == 2


async def test_stopped_with_cancel_it_leaves_nothing_running() -> None:
    bench = Bench(CreditPort(w0=2), count=5)
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: len(bench.running) == 2)
    bench.driver.stop(cancel=True)
    await running
    assert not bench.running
    assert bench.feed.waiting == 5


async def test_stopped_with_cancel_what_was_placed_in_the_same_turn_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled before its first turn runs no line of its own: the job waited for it for ever."""
    bench = Bench(CreditPort(w0=2), count=5)
    pull = bench.feed.pull

    def stop_after(worker: str, rows: int, positions: float, sweeps: int = 0) -> list[PlacedRequest]:
        asyncio.get_running_loop().call_soon(lambda: bench.driver.stop(cancel=True))
        return pull(worker, rows, positions, sweeps)

    monkeypatch.setattr(bench.feed, "pull", stop_after)
    running = asyncio.create_task(bench.driver.run())
    await until(running.done)
    assert not bench.placed
    assert bench.feed.waiting == 5
    assert bench.driver.progress().given_back == 2


async def test_an_answer_that_fails_for_no_reason_of_its_own_ends_the_job() -> None:
    bench = Bench(CreditPort(w0=3), count=5)

    async def full(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
        if placed.request:
            raise OSError("the disk is full")
        return await bench.answer(placed, sent)

    with pytest.raises(OSError, match="disk is full"):
        await bench.made(full).run()
    assert not bench.running


async def test_who_has_nothing_left_is_given_of_anothers_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an errand, as it is where parts are large."""
    monkeypatch.setattr("blockwright.policies.offline.feed.FEW", 0)
    bench = Bench(CreditPort(w0=1, w1=1), count=8)
    running = asyncio.create_task(bench.driver.run())
    await until(lambda: len(bench.running) == 2)
    for _ in range(4):
        (request,) = [one.request for one in bench.placed if one.worker == "w1" and one.request in bench.running]
        count = len(bench.placed)
        bench.end(request)
        await until(lambda count=count: len(bench.placed) > count)  # type: ignore[misc]
    assert sum(one.worker == "w1" for one in bench.placed) == 5, "its own four, and one of the other's"
    bench.driver.stop(cancel=True)
    await running
