"""The event feed of a worker: whoever follows it has the worker's machine, however slowly it reads; nobody else pays."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from blockwright.actors.worker import event_feed
from blockwright.actors.worker.event_feed import EventFeed
from blockwright.actors.worker.event_recorder import Machine
from blockwright.actors.worker.feed_format import read_batch, write_batch
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.prediction.replica import Replica
from blockwright.policies.sweep.event_log import Began
from blockwright.policies.sweep.feed import FeedEntry, Priced
from blockwright.policies.sweep.state import SweepState
from blockwright.runtime.base.errors import DecodeError
from blockwright.tests.policies.event_tape import Driver, make_state

ONE, OTHER = Coefficients(base=1.0), Coefficients(base=2.0)


class Worker:
    """A machine, who stands before it, and what it knows of its sweeps."""

    def __init__(self) -> None:
        self.state = make_state()
        self.machine: Machine = self.state
        self.costs: Coefficients | None = None
        self.feed = EventFeed(self.state, self.state, self._stand, lambda: self.costs, asyncio.to_thread)

    def _stand(self, machine: Machine) -> None:
        self.machine = machine


class Follower:
    """Takes batches, one at each request."""

    def __init__(self, worker: Worker) -> None:
        self.batches = worker.feed.follow()
        self.replica: Replica | None = None
        self.entries: list[FeedEntry] = []

    async def read(self) -> None:
        for entry in read_batch(await anext(self.batches)):
            self.entries.append(entry)
            if isinstance(entry, Began):
                self.replica = Replica(entry)
            else:
                assert self.replica is not None
                self.replica.take(entry)

    async def catch_up(self, state: SweepState) -> Replica:
        while self.replica is None or self.replica.state.digest() != state.digest():
            await self.read()
        return self.replica


async def test_whoever_follows_has_the_machine() -> None:
    """From the middle on, and another from later on."""
    worker = Worker()
    driver = Driver(worker.machine, worker.state)  # type: ignore[arg-type]
    driver.submit(9)
    one, other = Follower(worker), Follower(worker)
    await one.read()
    driver.machine = worker.machine  # type: ignore[assignment]
    for _ in range(10):
        driver.turn()
    await one.catch_up(worker.state)
    await other.read()
    while driver.turn():
        continue
    for follower in (one, other):
        await follower.catch_up(worker.state)
    assert len(one.entries) > len(other.entries) > 10
    assert worker.state.counters["preemptions"] > 0
    await one.batches.aclose()
    assert worker.machine is worker.feed
    await other.batches.aclose()
    assert worker.machine is worker.state, "nobody listens any more"


async def test_who_reads_too_slowly_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "MOST_WAITING", 20)
    worker = Worker()
    follower = Follower(worker)
    await follower.read()
    driver = Driver(worker.machine, worker.state)  # type: ignore[arg-type]
    driver.submit(9)
    while driver.turn():
        continue
    (waiting,) = worker.feed._subscribers
    assert waiting.stale
    assert not waiting.entries, "nothing is kept for whoever has to begin anew"
    await follower.catch_up(worker.state)
    assert [isinstance(entry, Began) for entry in follower.entries] == [True, True]
    await follower.batches.aclose()


async def test_what_sweeps_cost_is_reported_when_it_is_known_and_when_it_changes() -> None:
    worker = Worker()
    async with aclosing(worker.feed.follow()) as batches:
        await anext(batches)
        driver = Driver(worker.machine, worker.state)  # type: ignore[arg-type]
        seen: list[Coefficients] = []
        for costs in (None, ONE, ONE, OTHER):
            worker.costs = costs
            driver.turn()
            seen += [entry.coefficients for entry in read_batch(await anext(batches)) if isinstance(entry, Priced)]
        assert seen == [ONE, OTHER]


async def test_entries_that_come_together_travel_together() -> None:
    worker = Worker()
    async with aclosing(worker.feed.follow()) as batches:
        await anext(batches)
        driver = Driver(worker.machine, worker.state)  # type: ignore[arg-type]
        driver.submit(5)
        for _ in range(4):
            driver.turn()
        assert len(read_batch(await anext(batches))) == 2 + 5 + 1 + 4


def test_what_is_no_batch_is_refused() -> None:
    for wrong in (b"\xc1", write_batch([])[:-1], b"\x91\x01", write_batch([Priced(ONE)])[:-3]):
        with pytest.raises(DecodeError):
            read_batch(wrong)
