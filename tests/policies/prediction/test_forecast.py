"""A forecast equals what the machine then does: a worker on virtual time, stepped sweep by sweep, with the lengths that
were estimated and the cost model's seconds."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.prediction.forecast import NEVER, Forecaster
from blockwright.policies.prediction.lazy_replay import LazyReplay
from blockwright.policies.prediction.lazy_replay_support import LazyReplayUnsupported
from blockwright.policies.prediction.lengths import corrected
from blockwright.policies.prediction.replay import MachineReplay
from blockwright.policies.prediction.timeline import Timeline, TimelineEntry
from blockwright.policies.requests.account import offline_account
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import Submission, TokensEmitted
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim

from ..sweep_world import chain, pipeline, replica, submission

BASE, OTHER = chain("base"), chain("other", own_from=0)
ROUTES = {c.application: replica("w0", c) for c in (BASE, OTHER)}
COSTS = Coefficients(base=1e-2, step=1e-4, token=1e-3, beyond=1e-4, row=1e-4, context=1e-6, prefill=2e-6)
STOP = 49


class LiveWorker:
    """Two plans open, as in the live one. Its device ends a sequence at the length that is expected, with the stop token if
    it has one."""

    def __init__(self, **config: int) -> None:
        sizes = {"budget": 64 * 64 * 1024, "slot_unit": 32 * 1024, "page_size": 4, "chunk_size": 8, "sweep_tokens": 32}
        self.state = SweepState(SweepConfig(worker="w0", numerics="fake", **{**sizes, "max_rows": 6, **config}))  # type: ignore[arg-type]
        self.state.apply(RoutesChanged(1, [BASE, OTHER], [*ROUTES.values()], [*ROUTES.values()]), 0.0)
        self.now = 0.0
        self.open: deque[tuple[SweepPlan, float]] = deque()
        self.totals: dict[str, int] = {}
        self.first: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.chance = random.Random(1)

    def submit(self, of: Submission) -> None:
        self.totals[of.request] = of.prompt_length + of.expected
        self.state.apply(of, self.now)
        self.plan()

    def plan(self) -> None:
        while len(self.open) < 2 and (plan := self.state.plan(self.now)) is not None:
            begin = self.open[-1][1] if self.open else self.now
            self.open.append((plan, begin + cost(plan, COSTS)))
        self.hear()

    def step(self) -> bool:
        if not self.open:
            return False
        plan, self.now = self.open.popleft()
        rows, batch = self.state.parts.rows, self.state.batch(plan.number)
        tokens = []
        for i in plan.sample:
            of = rows.submission[batch[i]]
            last = plan.start[i] + plan.count[i] + 1 == self.totals[of.request]
            tokens.append(of.stop_tokens[0] if last and of.stop_tokens else self.chance.randrange(40))
        self.state.commit(plan, SweepResult(plan.number, tokens), self.now)
        self.hear()
        self.plan()
        return True

    def run_until(self, now: float) -> None:
        while self.open and self.open[0][1] <= now:
            self.step()
        self.now = now

    def hear(self) -> None:
        for effect in self.state.take_effects().news:
            if isinstance(effect, TokensEmitted):
                self.first.setdefault(effect.request, self.now)
                if effect.finish:
                    self.ends[effect.request] = self.now

    @property
    def present(self) -> TimelineEntry:
        return TimelineEntry(self.state, COSTS, [(plan, end - self.now) for plan, end in self.open])


def request(number: int, chance: random.Random, arrival: float, tenant: str, applications: str = "bbbbo") -> Submission:
    prompt = [chance.randrange(3)] * chance.randint(0, 8) + [chance.randrange(40) for _ in range(chance.randint(1, 20))]
    length = chance.randint(1, 40)
    stops = chance.random() < 0.7
    limit = len(prompt) + (60 if stops else length)
    application = {"b": "base", "o": "other"}[chance.choice(applications)]
    more = {"stop": [STOP] * stops, "arrival": arrival, "tenant": tenant, "expected": length}
    return submission(f"r{number}", prompt, limit, ROUTES[application].id, **more)  # type: ignore[arg-type]


@claim("A forecast is what the scheduler then does", of="prediction")
@pytest.mark.parametrize("seed", range(40))
def test_a_forecast_is_what_the_machine_then_does(seed: int) -> None:
    """Random states, of which some have little memory, some several accounts and some equal prompts."""
    chance = random.Random(seed)
    budget = chance.choice([20, 30, 64, 200]) * 64 * 1024
    worker = LiveWorker(budget=budget, max_rows=chance.choice([3, 6, 12]))
    accounts = chance.choice(["a", "a", "ab"])
    for number in range(chance.randint(0, 14)):
        worker.submit(request(number, chance, worker.now, chance.choice(accounts)))
        worker.run_until(worker.now + chance.random() * 0.1)
    before = worker.state.digest()
    flying = [request(100 + n, chance, worker.now + n, "a") for n in range(chance.choice([0, 0, 2]))]
    target = request(200, chance, worker.now + 5, chance.choice(accounts))
    forecast = Forecaster([worker.present], worker.now, in_flight=flying).forecast(target)
    assert worker.state.digest() == before, "a forecast has changed the machine"
    preempted, began = worker.state.counters["preemptions"], worker.now
    for of in [*flying, target]:
        worker.submit(of)
    while "r200" not in worker.ends and worker.step():
        continue
    assert forecast.first_token == pytest.approx(worker.first.get("r200", NEVER) - began, rel=1e-9)
    assert forecast.last_token == pytest.approx(worker.ends.get("r200", NEVER) - began, rel=1e-9)
    if forecast.last_token < NEVER:
        assert forecast.preemptions == worker.state.counters["preemptions"] - preempted


def test_the_short_way_leads_to_the_same_course() -> None:
    """A lazy replay and the machine give every request the same first and last token, in whatever state they begin, and
    preempt the same ones."""
    plain = preempted = 0
    for seed in range(100):
        chance = random.Random(seed)
        worker = LiveWorker(budget=chance.choice([24, 44, 64, 200]) * 64 * 1024, max_rows=chance.choice([3, 6, 12]))
        for number in range(chance.randint(0, 14)):
            worker.submit(request(number, chance, worker.now, "a", "b"))
            worker.run_until(worker.now + chance.random() * 0.1)
        coming = [request(100 + n, chance, worker.now + n, "a", "b") for n in range(chance.choice([1, 1, 3]))]
        stepped = MachineReplay([worker.present], coming, worker.now)
        stepped.play(coming[-1].request, 1 << 30)
        try:
            lazy = LazyReplay(worker.present, coming, worker.now)
            lazy.play(coming[-1].request, 1 << 30)
        except LazyReplayUnsupported:
            continue
        plain, preempted = plain + 1, preempted + lazy.preemptions
        assert lazy.preemptions == stepped.preemptions
        assert lazy.timeline.ends == pytest.approx(stepped.timeline.ends, rel=1e-9)
        assert lazy.present == stepped.present
        assert lazy.timeline.time_of(0) == stepped.timeline.time_of(0) == 0.0
        for of in coming:
            assert lazy.timeline.first_tokens.get(of.request) == pytest.approx(stepped.timeline.first_tokens.get(of.request))
    assert plain > 50, "the short way covers too little"
    assert preempted > 5, "memory was never short"


def test_both_ways_know_who_is_still_there() -> None:
    """Count requests that wait, and requests whose last token is being computed, among the delayed ones."""
    waiting = 0
    for seed in range(20):
        chance = random.Random(seed)
        worker = LiveWorker(budget=200 * 64 * 1024, max_rows=3)
        coming = [request(100 + n, chance, worker.now + n, "a", "b") for n in range(6)]
        try:
            lazy = LazyReplay(worker.present, coming, worker.now)
            lazy.play("r100", 1 << 30)
        except LazyReplayUnsupported:
            continue
        for of in coming:
            worker.submit(of)
        while "r100" not in worker.ends:
            assert worker.step()
        stepped = MachineReplay([LiveWorker(budget=200 * 64 * 1024, max_rows=3).present], coming, 0.0)
        stepped.play("r100", 1 << 30)
        state = worker.state
        assert lazy.present == stepped.present == state.running + state.waiting
        waiting += state.waiting
    assert waiting > 0


def test_a_forecast_says_how_wrong_its_estimates_are() -> None:
    present = TimelineEntry(LiveWorker().state, COSTS, spread=0.7)
    for limit in (20, 1 << 40):  # the second one can never run there
        found = Forecaster([present], 0.0).forecast(submission("x", [1, 2, 3], limit, ROUTES["base"].id))
        assert (found.spread, found.last_token == NEVER) == (0.7, limit > 20)


def test_offline_sequences_keep_no_forecast_from_the_short_way() -> None:
    """What it says is what the machine says that plays them all but for the offline ones, and neither changes the worker."""
    plain = 0
    for seed in range(60):
        chance = random.Random(seed)
        worker = LiveWorker(budget=chance.choice([44, 64, 200]) * 64 * 1024, max_rows=chance.choice([6, 12]))
        for number in range(chance.randint(2, 10)):
            of = request(number, chance, worker.now, "a", "b")
            if chance.random() < 0.5:
                of = replace(of, priority=offline_urgency(), tenant=offline_account("left"))
            worker.submit(of)
            worker.run_until(worker.now + chance.random() * 0.05)
        before = worker.state.digest()
        coming = [request(100, chance, worker.now, "a", "b")]
        stepped = MachineReplay([worker.present], coming, worker.now)
        stepped.play("r100", 1 << 30)
        try:
            lazy = LazyReplay(worker.present.without_offline(worker.now), coming, worker.now)
            lazy.play("r100", 1 << 30)
        except LazyReplayUnsupported:
            continue
        plain += bool(worker.state.parts.queue.offline)
        forecast = Forecaster([worker.present], worker.now).forecast(coming[0])
        assert forecast.last_token == pytest.approx(stepped.timeline.ends["r100"], rel=1e-9)
        assert lazy.timeline.ends == pytest.approx(stepped.timeline.ends, rel=1e-9)
        assert worker.state.digest() == before
    assert plain > 15, "the short way covers too little"


def test_delayed_is_what_the_others_lose() -> None:
    """Three requests that end before the new one does: each of them ends so much later than without it."""

    def ends(new: list[Submission]) -> dict[str, float]:
        worker = LiveWorker(budget=200 * 64 * 1024)
        for of in [*others, *new]:
            worker.submit(of)
        while worker.step():
            continue
        return worker.ends

    chance = random.Random(3)
    more = {"stop_tokens": [STOP], "max_length": 90}
    others = [replace(request(n, chance, 0.0, "a", "b"), expected=5 + n, **more) for n in range(3)]
    target = replace(request(9, chance, 1.0, "a", "b"), expected=30, **more)
    worker = LiveWorker(budget=200 * 64 * 1024)
    for of in others:
        worker.submit(of)
    found = Forecaster([worker.present], 0.0).forecast(target)
    with_it, without = ends([target]), ends([])
    assert found.delayed == pytest.approx(sum(with_it[of.request] - without[of.request] for of in others))
    assert found.delayed > 0.001
    assert Forecaster([worker.present], 0.0).forecast(target, delays=False) == replace(found, delayed=0.0)


def test_those_that_are_still_there_are_delayed_by_what_as_many_sweeps_take_longer() -> None:
    """Two requests decode on when the new one ends."""

    def time_after(new: list[Submission], sweeps: int) -> tuple[float, int]:
        worker = LiveWorker(budget=200 * 64 * 1024)
        for of in [*others, *new]:
            worker.submit(of)
        done = 0
        while (done < sweeps or not sweeps) and "r9" not in worker.ends:
            assert worker.step()
            done += 1
        return worker.now, done

    more = {"stop_tokens": [STOP], "max_length": 200, "prompt_length": 8}
    others = [
        replace(request(n, random.Random(n), 0.0, "a", "b"), expected=120, tokens=[n] * 8, page_hashes=[], **more)
        for n in (0, 1)
    ]
    target = replace(request(9, random.Random(9), 1.0, "a", "b"), expected=10, tokens=[9] * 8, page_hashes=[], **more)
    worker = LiveWorker(budget=200 * 64 * 1024)
    for of in others:
        worker.submit(of)
    found = Forecaster([worker.present], 0.0).forecast(target)
    with_it, sweeps = time_after([target], 0)
    without, _ = time_after([], sweeps)
    assert found.delayed == pytest.approx(2 * (with_it - without), rel=0.1)
    assert found.delayed > 0.001


def test_a_course_is_known_at_some_sweeps_and_on_the_lines_between() -> None:
    timeline = Timeline(sweeps=[0, 4, 10], times=[0.0, 2.0, 5.0])
    assert [timeline.time_of(sweep) for sweep in (0, 2, 4, 7, 10, 12)] == [0.0, 1.0, 2.0, 3.5, 5.0, 5.0]
    assert Timeline().time_of(0) == 0.0


def test_what_does_not_end_is_endless() -> None:
    chance = random.Random(5)
    worker = LiveWorker(budget=20 * 64 * 1024)
    target = replace(request(1, chance, 0.0, "a", "b"), expected=40, stop_tokens=[STOP])
    assert Forecaster([worker.present], 0.0, horizon=20).forecast(target).last_token == NEVER
    larger = replace(target, max_length=900)
    assert Forecaster([worker.present], 0.0).forecast(larger).last_token == NEVER, "it fits no memory"


def test_an_estimate_that_was_outrun_is_corrected() -> None:
    """Whoever has more tokens than were expected is expected to make ten more."""
    worker = LiveWorker(budget=200 * 64 * 1024)
    running = replace(request(1, random.Random(5), 0.0, "a", "b"), expected=30, stop_tokens=[STOP], max_length=90)
    worker.submit(running)
    while len(worker.state.parts.rows.tokens_of(0)) < running.prompt_length + 20:
        worker.step()
    late = MachineReplay([worker.present], [], worker.now)
    late.play("r1", 1 << 30)
    worker.state.parts.rows.submission[0] = replace(running, expected=15)
    corrected = MachineReplay([worker.present], [], worker.now)
    corrected.play("r1", 1 << 30)
    assert corrected.timeline.ends == late.timeline.ends, "20 and 10 more is what was expected at first"


@pytest.mark.parametrize("replay", [MachineReplay, LazyReplay])
@pytest.mark.parametrize("spread", [0.0, 0.6, 1.2])
def test_what_is_still_to_come_is_the_mean_of_answers_that_are_as_long_already(replay: type, spread: float) -> None:
    """By how wrong estimates were: one that runs, one that waits and one that comes end where ``corrected`` says so."""

    estimates = {"r0": 30, "r1": 15, "r2": 25, "r3": 35}

    def ends(spread: float, means: float) -> dict[str, float]:
        worker = LiveWorker(budget=200 * 64 * 1024, max_rows=2)
        more = {"stop_tokens": [STOP], "max_length": 400}
        first, waits, comes = (
            replace(request(n, random.Random(n), 0.0, "a", "b"), expected=90, tokens=[n] * 8, prompt_length=8, **more)
            for n in (1, 2, 3)
        )
        hold = replace(request(0, random.Random(9), 0.0, "a", "b"), expected=50, tokens=[0] * 8, prompt_length=8, **more)
        for of in (hold, first):
            worker.submit(of)
        rows = worker.state.parts.rows
        while rows.length[rows.find("r1")] < 8 + 20:
            worker.step()
        worker.submit(waits)
        done = {rows.submission[s].request: rows.length[s] for s in rows.live()}
        expected = {  # an estimate of which nothing is wrong, of the mean
            name: corrected(n, 8, done.get(name, 8), spread=means) if means else n for name, n in estimates.items()
        }
        for s in rows.live():
            rows.submission[s] = replace(rows.submission[s], expected=expected[rows.submission[s].request])
        present = replace(worker.present, spread=spread)
        made = replay(
            [present] if replay is MachineReplay else present, [replace(comes, expected=expected["r3"])], worker.now
        )
        made.play("r3", 1 << 30)
        return {name: made.timeline.ends[name] for name in ("r1", "r2", "r3")}

    assert ends(spread, 0.0) == pytest.approx(ends(0.0, spread))
    assert (ends(spread, 0.0) == pytest.approx(ends(0.0, 0.0))) == (spread == 0.0)


@pytest.mark.parametrize("replay", [MachineReplay, LazyReplay])
def test_an_answer_without_an_estimate_ends_at_its_limit_where_errors_of_estimates_are_known(
    replay: type,
) -> None:
    """The mean of what is beyond nothing was a division by it, and the forecast failed."""
    worker = LiveWorker(budget=200 * 64 * 1024)
    running = replace(request(1, random.Random(5), 0.0, "a", "b"), expected=0, stop_tokens=[STOP], max_length=60)
    worker.totals["r1"] = 1 << 40
    worker.state.apply(running, worker.now)
    worker.plan()
    while worker.state.parts.rows.length[0] < running.prompt_length + 5:
        worker.step()
    found = []
    for spread in (0.0, 0.7):
        present = replace(worker.present, spread=spread)
        made = replay([present] if replay is MachineReplay else present, [], worker.now)
        made.play("r1", 1 << 30)
        found.append(made.timeline.ends["r1"])
        assert present.total(running, running.prompt_length + 5) == 60
    assert found[0] == found[1]


def test_routes_over_several_workers_are_forecast() -> None:
    """An idle pipeline of two workers: each token passes both of them."""
    route = pipeline(["w0", "w1"], BASE)
    second = Coefficients(base=1.0)
    presents = []
    for name in ("w0", "w1"):
        config = SweepConfig(worker=name, numerics="fake", budget=64 * 64 * 1024, slot_unit=32 * 1024, page_size=4)
        state = SweepState(config)
        state.apply(RoutesChanged(1, [BASE], [route], [route]), 0.0)
        state.take_effects()
        presents.append(TimelineEntry(state, second))
    target = submission("r0", [1, 2, 3, 4, 5], 60, route.id, stop=[STOP], expected=4)
    found = Forecaster(presents, 0.0).forecast(target)
    assert (found.first_token, found.last_token) == (2.0, 8.0)
