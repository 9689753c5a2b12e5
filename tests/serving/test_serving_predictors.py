"""Predictors beside the live actors in virtual time: their replicas are what the workers are, whatever happens to these, and
what they forecast is what then happens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from blockwright.actors.predictor.actor import Predictor
from blockwright.actors.predictor.messages import NODE, Query, predictor_of
from blockwright.policies.cluster.report_sequence import ACKNOWLEDGE_EVERY
from blockwright.policies.control.events import Application
from blockwright.policies.prediction.candidate import Candidate
from blockwright.policies.prediction.in_flight import PATIENCE
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.sweep.events import Submission, TokensEmitted
from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.testing import Kill
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans
from blockwright.tests.policies.sweep_world import submission
from blockwright.tests.serving.device import CHUNK, SWEEP, TOKEN, VOCABULARY
from blockwright.tests.serving.game import LONGEST, WITHIN, Game
from blockwright.tests.serving.house import PAGE, House, Plan, chain

PARTS = 3
PART = 8
DAILY = 4
QUIET = 1.0  # seconds after which a quiet worker has reported everything


class Followed(Game):
    """With predictors, whose process dies in some of the seeds."""

    async def _scenario(self, sim: Any) -> None:
        if self.seed % 3 == 0:
            self.faults.append(Kill(self.random.uniform(0.0, WITHIN), NODE))
        await super()._scenario(sim)
        await asyncio.sleep(QUIET)
        self.figures: Counter[str] = Counter()
        for name, worker in self.house.workers.items():
            predictor = sim.nodes[NODE].actors.find(f"predictor-{name}").actor
            assert isinstance(predictor, Predictor)
            replica = predictor._replica
            assert replica is not None, f"nobody follows {name}"
            assert replica.state.digest() == worker.state.digest(), f"the replica of {name} is not what {name} is"
            self.figures.update(predictor.figures())


@claim("A predictor's replica is the state of its worker, under random faults", of="prediction")
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
def test_replicas_are_what_the_workers_are(span: range) -> None:
    """Through preemptions, requests over several workers, kills, lost messages, blocks that are loaded."""
    figures: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    for seed in span:
        game = Followed(seed, dispatch="llumnix-minus-code")
        game.play()
        figures += game.figures
        counters += game.counters
    assert figures["disagreements"] == 0
    assert figures["feeds"] > figures["replica"], "no worker had a second life"
    assert counters["preemptions"] > 0
    assert counters["hops of 3"] > 0


# forecasts -----------------------------------------------------------------------------------------------------------

SLOW = 10.0  # by which sweeps take longer than those of the seeds: a batch of the feed is a small part of one
LATENCY = 0.0002  # seconds of a message
COSTS = {"base": SLOW * SWEEP, "token": SLOW * TOKEN}


class Steady(Random):
    """A device whose sweeps take what the profile says."""

    def uniform(self, a: float, b: float) -> float:
        return SLOW


class Listener(Actor):
    """In the place of a gateway: when tokens came."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.ends: dict[str, float] = {}

    @endpoint
    async def tokens(self, report: SweepReport) -> None:
        now = self.node.clock.now()
        for news in report.news:
            if isinstance(news, TokensEmitted):
                self.first.setdefault(news.request, now)
                if news.finish:
                    self.ends[news.request] = now
        if report.serial % ACKNOWLEDGE_EVERY == 0:
            self.node.ref(f"{report.worker}/worker").ack.cast(str(self.ref), report.serial)


class QuietCluster:
    """A cluster with one application, on which nobody works but who submits here."""

    def __init__(self, span: int, rows: int, room: int, profile: Path) -> None:
        links = {"shared-memory": {"latency": LATENCY, "bandwidth": 0.0}}
        profile.write_text(json.dumps({"coefficients": COSTS, "links": links}))
        components = chain("a", 2, 99)
        workers = tuple(f"w{i}" for i in range(span))
        applications = (Application("a", "", components, LONGEST, span),)
        more = {"dispatch": "ours", "profile": str(profile)}
        plan = Plan(workers, (), applications, (len(components) + room) * CHUNK, rows, 16, **more)
        self.house = House(plan, 1, self._failed, lambda gateway: [])
        self.house.sim.network._latency = (LATENCY, LATENCY)
        self.listener = Listener()
        self.chance = Random(7)

    def _failed(self, error: BaseException) -> None:
        raise error

    async def open(self, sim: Any) -> None:
        await self.house.open()
        while not self.house.state.whole:  # noqa: ASYNC110 - until the controller says so
            await asyncio.sleep(0.05)
        for device in self.house.devices.values():
            device._random = Steady()
        await sim.head.spawn(self.listener, name="listener")
        self.sim, (self.route,) = sim, self.house.state.routes.values()
        await asyncio.sleep(QUIET)

    def request(self, number: int, answer: int) -> Submission:
        prompt = [self.chance.randrange(VOCABULARY) for _ in range(self.chance.randint(1, 14))]
        more = {"gateway": str(self.listener.ref), "arrival": float(number)}
        return submission(f"r{number}", prompt, len(prompt) + answer, self.route.id, page_size=PAGE, **more)

    async def submit(self, of: Submission) -> None:
        await self.sim.head.ref(f"{self.route.home}/worker").submit(of)

    async def ask(self, of: Submission) -> Candidate:
        predictor = self.sim.head.ref(predictor_of(self.route.home), Predictor)
        found: Candidate | None = await predictor.ask(Query(of, self.route.id))
        assert found is not None
        return found


@claim("A forecast is what the scheduler then does", of="prediction")
@pytest.mark.parametrize(("span", "rows", "room"), [(1, 3, 100), (1, 6, 12), (2, 3, 100)])
def test_a_forecast_is_what_then_happens(span: int, rows: int, room: int, tmp_path: Path) -> None:
    """Where rows are few, where memory is short, and over two workers, with what links take."""
    quiet = QuietCluster(span, rows, room, tmp_path / "profile.json")
    sweep = SLOW * (SWEEP + 16 * TOKEN)

    async def scenario(sim: Any) -> None:
        await quiet.open(sim)
        for number in range(6):
            await quiet.submit(quiet.request(number, 10 + 4 * number))
            await asyncio.sleep(0.03)
        target = quiet.request(9, 20)
        worker = quiet.house.workers[quiet.route.home].state
        asked, preempted = sim.time, worker.counters["preemptions"]
        found = await quiet.ask(target)
        assert (found.running, found.waiting) == (worker.running, worker.waiting)
        await quiet.submit(target)
        while target.request not in quiet.listener.ends:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.05)
        assert found.forecast is not None
        first, last = quiet.listener.first[target.request] - asked, quiet.listener.ends[target.request] - asked
        assert found.forecast.first_token == pytest.approx(first, abs=sweep)
        assert found.forecast.last_token == pytest.approx(last, abs=sweep)
        assert found.forecast.last_token > 20 * SLOW * SWEEP
        assert found.forecast.delayed >= 0
        assert (worker.counters["preemptions"] > preempted) == (found.forecast.preemptions > 0) == (room < 50)

    quiet.house.sim.run(scenario)


def test_what_is_in_flight_is_forecast_too(tmp_path: Path) -> None:
    """Until the worker has it, or it has not come for too long."""
    quiet = QuietCluster(1, 1, 100, tmp_path / "profile.json")

    async def scenario(sim: Any) -> None:
        await quiet.open(sim)
        other, target = quiet.request(1, 20), quiet.request(2, 5)
        predictor = sim.head.ref(predictor_of("w0"), Predictor)
        alone = await quiet.ask(target)
        predictor.placed.cast(other)
        behind = await quiet.ask(target)
        assert alone.forecast is not None
        assert behind.forecast is not None
        assert (alone.in_flight, alone.waiting, behind.in_flight, behind.waiting) == (0, 0, 1, 1)
        assert behind.forecast.first_token > alone.forecast.first_token + 20 * SLOW * SWEEP
        await quiet.submit(other)
        await asyncio.sleep(0.2)
        running = await quiet.ask(target)
        assert (running.in_flight, running.running, running.waiting) == (0, 1, 0)
        assert running.free_blocks < running.total_blocks == alone.free_blocks
        predictor.placed.cast(other)  # the word of it comes late
        assert (await quiet.ask(target)).in_flight == 0
        predictor.placed.cast(quiet.request(3, 5))
        assert (await quiet.ask(target)).in_flight == 1
        await asyncio.sleep(PATIENCE)
        assert (await quiet.ask(target)).in_flight == 0

    quiet.house.sim.run(scenario)
