"""Drafts that a lower tier draws in the sweep that verifies them: the steps, their order, and the same tokens always.

The law is played over seeded schedules in which sequences come, are cancelled, move, are preempted and lose their worker,
and in which the tiers themselves come and go. It is played for each source of drafts alone, too, beside a tier whose hidden
states the model enters at.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.chain import Chain
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.policies.sweep.sweep_load import SweepLoad
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.policies import fake_device, sweep_world
from blockwright.tests.policies.draft_schedule import DraftSchedule
from blockwright.tests.policies.fake_device import CHUNK
from blockwright.tests.policies.sweep_world import (
    World,
    chain,
    generate,
    guesses,
    pipeline,
    replica,
    submission,
    tier,
    variant,
)

BASE = chain("base", 4)
LOW = tier(BASE, 1)
MIDDLE = tier(BASE, 2)
HIGH = tier(BASE, 3)
TUNED = variant(BASE, "tuned", [1, 5])
SEEDS = 1000
PARTS = 50
DAILY = 3
SOURCES = ("prompt", "prediction", "tier", "wrong")  # wrong: predictions and tiers of which no draft ever stands


def world(*chains: Chain, **config: object) -> World:
    return World(["w0"], [*chains], [replica("w0", one) for one in chains], **config)  # type: ignore[arg-type]


def by(*tiers: Chain, tokens: int = 3) -> DraftOptions:
    return DraftOptions(tokens=tokens, tiers=[one.application for one in tiers])


def second_plan(played: World) -> SweepPlan:
    """The first plan that decodes."""
    worker = played.workers["w0"]
    assert played.start_plan(worker)
    assert played.end_plan(worker)
    assert played.start_plan(worker)
    return worker.open[0][0]


def kinds(played: World, plan: SweepPlan) -> list[tuple[int, bool, bool, int, list[int]]]:
    """Return for each step the depth of its run, True for a head, True for a draft, its place and its rows."""
    runs = played.workers["w0"].state.parts.routes.runs
    return [(runs[step.run].depth, step.head, step.draft, step.place, step.batch) for step in plan.steps]


# steps ---------------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_round() -> None:
    """Each position passes below the exit in turn; above it all pass at once, with the rows that draft nothing."""
    played = world(BASE, LOW)
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by(LOW, tokens=2)))
    played.submit(submission("other", [4, 5], 30, "base@w0", arrival=1.0))
    played.submit(submission("low", [6, 7], 30, "base:1@w0", arrival=2.0))
    plan = second_plan(played)
    row, other, low = (played.workers["w0"].state.batch(plan.number).index(s) for s in range(3))
    assert (plan.count[row], plan.count[other], plan.count[low]) == (3, 1, 1)
    assert plan.drafting == plan.verify == [row]
    assert kinds(played, plan) == [
        (0, False, False, 0, sorted([row, other, low])),
        (3, True, True, 0, [row]),
        (0, False, False, 1, [row]),
        (3, True, True, 1, [row]),
        (0, False, False, 2, [row]),
        (3, False, False, -1, sorted([row, other])),
        (3, True, False, -1, [low]),
        (9, True, False, -1, sorted([row, other])),
    ]
    played.run()
    played.assert_quiet()


def test_rows_with_different_exits_share_the_passes_that_they_have_in_common() -> None:
    played = world(BASE, LOW, HIGH)
    for number, draft in enumerate((by(LOW, tokens=1), by(HIGH, tokens=2), None)):
        played.submit(submission(f"r{number}", [number, 2, 3], 30, "base@w0", drafts=draft, arrival=float(number)))
    plan = second_plan(played)
    low, high, plain = (plan.count.index(count) for count in (2, 3, 1))
    assert kinds(played, plan) == [
        (0, False, False, 0, [0, 1, 2]),
        (3, False, False, 0, sorted([high, plain])),
        (3, True, True, 0, [low]),
        (7, True, True, 0, [high]),
        (0, False, False, 1, sorted([low, high])),
        (3, False, False, 1, [high]),
        (7, True, True, 1, [high]),
        (0, False, False, 2, [high]),
        (3, False, False, 2, [high]),
        (3, False, False, -1, [low]),
        (7, False, False, -1, [0, 1, 2]),
        (9, True, False, -1, [0, 1, 2]),
    ]
    played.run()
    assert all(played.emitted[f"r{n}"] == generate("base", [n, 2, 3], 30, []) for n in range(3))


def test_a_round_takes_fewer_sweeps_where_the_tier_is_right() -> None:
    sweeps = {}
    for agreeing in (0, 100):
        played = world(BASE, LOW)
        played.workers["w0"].device.agreeing = agreeing
        played.submit(submission("r", [1, 2, 3], 44, "base@w0", drafts=by(LOW, tokens=4)))
        played.run()
        assert played.emitted["r"] == generate("base", [1, 2, 3], 44, [])
        counters = played.workers["w0"].state.counters
        assert counters["drafted_tokens"] > 0
        assert (counters["accepted_tokens"] == 0) == (not agreeing)
        sweeps[agreeing] = played.workers["w0"].state.number - 1
    assert sweeps == {0: 42, 100: 10}


def test_an_adapter_on_the_top_tier_is_drafted_for_by_its_own_lower_layers() -> None:
    """The deltas of the rows are those of their model in every pass, and the exit's head has none."""
    played = world(BASE, LOW, TUNED)
    played.submit(submission("r", [1, 2, 3], 30, "tuned@w0", drafts=by(LOW)))
    plan = second_plan(played)
    assert [(step.draft, step.delta) for step in plan.steps if step.place == 1] == [(False, [1]), (True, [])]
    played.run()
    assert played.emitted["r"] == generate("tuned", [1, 2, 3], 30, [])
    assert played.workers["w0"].state.counters["accepted_tokens"] > 0


@pytest.mark.parametrize(
    "chains",
    [
        [BASE],  # no such tier
        [BASE, Chain("base:1", LOW.blocks[:1], 1000)],
        [BASE, tier(chain("base", 4, own_from=0), 1)],  # of other parameters
        [BASE, Chain("base:1", BASE.blocks, 1000)],  # as deep as the model itself
    ],
    ids=["missing", "there", "foreign", "whole"],
)
def test_only_a_chain_that_leaves_the_models_own_layers_drafts(chains: list[Chain]) -> None:
    played = world(*chains)
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by(LOW)))
    played.run()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 30, [])
    there = len(chains) > 1 and chains[1].blocks == LOW.blocks
    assert (played.workers["w0"].state.counters["drafted_tokens"] > 0) == there


def test_where_the_route_spans_workers_the_request_goes_on_without() -> None:
    whole, low = pipeline(["w0", "w1"], BASE), pipeline(["w0", "w1"], LOW)
    played = World(["w0", "w1"], [BASE, LOW], [whole, low])
    played.submit(submission("r", [1, 2, 1, 2], 60, whole.id, drafts=by(LOW)))
    played.submit(submission("s", [1, 2, 1, 2], 60, whole.id, drafts=replace(by(LOW), prompt=True)))
    played.run()
    assert played.emitted["r"] == played.emitted["s"] == generate("base", [1, 2, 1, 2], 60, [])
    assert played.workers["w0"].state.counters["drafted_tokens"] > 0, "of the prompt of s"


def test_a_round_is_priced_as_the_plan_that_makes_it() -> None:
    """The policy takes (g + 1) S_1(1) + S_2(g + 1) and the heads, by the same cost model as the plan."""
    costs = Coefficients(
        base=1.0, step=0.25, read=8.0, token=0.5, beyond=0.125, row=0.0625, context=0.03125, prefill=0.0078125,
        parameters=800.0, kv=256.0,
    )  # fmt: skip
    for count in (1, 2, 8, 16):
        played = world(BASE, LOW)
        played.submit(submission("r", [1, 2, 3], 60, "base@w0", drafts=by(LOW, tokens=count)))
        plan, routes = second_plan(played), played.workers["w0"].state.parts.routes
        assert plan.count == [count + 1]
        local, head = routes.home("base@w0"), routes.home("base:1@w0")
        assert local is not None
        assert head is not None
        load = SweepLoad(costs, routes)
        assert load.price_round(local, head.runs[-1], plan.start[0], count, 0) == pytest.approx(cost(plan, costs))
        assert load.price_round(local, head.runs[-1], 3, 0, 0) == load.price(local, 1, 1, 4, 0)
        shared = load.price_round(local, head.runs[-1], 3, count, count)
        assert shared < load.price_round(local, head.runs[-1], 3, count, 0), "the passes are those of another row"


# laws ----------------------------------------------------------------------------------------------------------------


class Schedule(DraftSchedule):
    """One seeded play: two workers, little memory, tiers that come and go.

    ``source``: the only one of all drafts. Then requests go to a lower tier, too, and continue each other's prompts.
    """

    def __init__(self, seed: int, source: str = "") -> None:
        chance = random.Random(seed)
        served = (BASE, TUNED, MIDDLE) if source else (BASE, TUNED)
        homes = [replica(worker, one) for one in served for worker in ("w0", "w1")]
        homes.append(pipeline(["w0", "w1"], BASE))
        tiers = [replica("w0", LOW), replica("w1", LOW), replica("w0", HIGH)]
        world = World(
            ["w0", "w1"], [*served, LOW, HIGH], [*homes, *tiers],
            budget=chance.choice([28, 48, 160]) * CHUNK, max_rows=chance.choice([2, 4, 16]),
            chunk_size=8, sweep_tokens=chance.choice([8, 24, 64]), prefix_cache=chance.random() < 0.7,
        )  # fmt: skip
        for worker in world.workers.values():
            worker.device.agreeing = 0 if source == "wrong" else chance.choice([0, 50, 80, 100])
        super().__init__(chance, world, homes, tiers, 0.7)
        self.source = source

    def submit(self, name: str, arrival: float) -> None:
        prompt = [self.chance.randrange(2)] * self.chance.randrange(8) + [self.chance.randrange(50) for _ in range(6)]
        if self.source and self.want and self.chance.random() < 0.5:
            before = self.chance.choice(sorted(self.want))
            prompt = [*self.world.submitted[before].tokens, *self.world.emitted[before], *prompt[-2:]][:24]
        limit, stop = len(prompt) + self.chance.randrange(1, 25), [self.chance.randrange(50)]
        route = self.chance.choice([one for one in self.homes if {hop.worker for hop in one.hops} <= {*self.world.workers}])
        self.want[name] = generate(route.application, prompt, limit, stop)
        drafts = self.drafts_of(self.want[name])
        more = {"stop": stop, "arrival": arrival, "drafts": drafts, "tenant": self.chance.choice("ab")}
        self.world.submit(submission(name, prompt, limit, route.id, **more))

    def drafts_of(self, answer: list[int]) -> DraftOptions | None:
        tiers = ["base:3", "base:1"][self.chance.randrange(2) :]
        if not self.source:
            mixed, tokens = guesses(answer, self.chance, tiers), self.chance.random() < 0.6
            return DraftOptions(tokens=self.chance.choice([0, 1, 2, 4, 8]), tiers=tiers) if tokens else mixed
        tokens, wrong = self.chance.choice([0, 1, 2, 4, 8]), self.chance.choice([2, 8])
        if self.source == "prompt":
            return DraftOptions(True, tokens)
        if self.source == "tier" or (self.source == "wrong" and self.chance.random() < 0.5):
            return DraftOptions(tokens=tokens, tiers=tiers)
        right = self.source == "prediction"
        text = [token if right and self.chance.randrange(wrong) else token + fake_device.VOCABULARY for token in answer]
        return DraftOptions(tokens=tokens, prediction=text)


@claim("Drafts by a tier change no token, over a thousand schedules of preemption, moves, deaths and changes", of="drafts")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_tokens_are_those_without_drafts(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        Schedule(seed).play()


@claim("Drafts of each source, also ones that are always wrong, change no token beside hidden states", of="drafts")
@pytest.mark.parametrize("part", parts(20, 1))
@pytest.mark.parametrize("source", SOURCES)
def test_drafts_of_each_source_change_no_token(source: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first part each worker is checked after every plan that it makes and ends, in the others after some."""
    if not part:
        monkeypatch.setattr(sweep_world, "CHECKED", 1)
    if source == "prompt":  # else nothing repeats itself
        monkeypatch.setattr(fake_device, "VOCABULARY", 3)
    drafted = accepted = entered = 0
    for seed in range(part * 10, part * 10 + 10):
        schedule = Schedule(seed, source)
        schedule.play()
        for worker in schedule.world.workers.values():
            drafted += worker.state.counters["drafted_tokens"]
            accepted += worker.state.counters["accepted_tokens"]
            entered += worker.device.entered
    assert drafted > 100
    assert (accepted == 0) == (source == "wrong")
    assert entered > 0 or part


def test_the_schedules_draft() -> None:
    """Most of them have drafts by a tier that are verified, and some of these stand."""
    drafted: list[int] = []
    accepted = 0
    for seed in range(20):
        schedule = Schedule(seed)
        schedule.play()
        workers = schedule.world.workers.values()
        drafted.append(sum(worker.device.drafts for worker in workers))
        accepted += sum(worker.state.counters["accepted_tokens"] for worker in workers)
    assert sum(count > 0 for count in drafted) > 10
    assert sum(drafted) > 500
    assert accepted > 300
