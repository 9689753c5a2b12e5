"""Drafts that another model draws in a row of its own: the steps, its KV, its memory, and the same tokens always.

The law is played over seeded schedules in which sequences come, are cancelled, move, are preempted and lose their worker,
and in which the draft models themselves come and go.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.chain import Block, Chain
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.policies.sweep.columns import Place, Status
from blockwright.policies.sweep.draft_rows import REST
from blockwright.policies.sweep.events import DraftsVerified
from blockwright.policies.sweep.model_drafting import LEAD
from blockwright.policies.sweep.sweep_load import SweepLoad
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from ..draft_schedule import DraftSchedule
from ..fake_device import CHUNK
from ..sweep_world import FakeWorker, World, chain, generate, pipeline, replica, submission, tier, variant

BASE = chain("base", 4)
SMALL = chain("small", 2, own_from=0)
TUNED = variant(BASE, "tuned", [1, 5])
SMALL_TUNED = variant(SMALL, "small tuned", [1, 5])
SEEDS = 1000
PARTS = 50
DAILY = 3


def world(*chains: Chain, **config: object) -> World:
    return World(["w0"], [*chains], [replica("w0", one) for one in chains], **config)  # type: ignore[arg-type]


def by(model: Chain = SMALL, tokens: int = 3) -> DraftOptions:
    return DraftOptions(tokens=tokens, model=model.application)


def only(played: World) -> FakeWorker:
    return played.workers["w0"]


def step(played: World) -> SweepPlan:
    """Make and end a plan."""
    worker = only(played)
    assert played.start_plan(worker)
    plan = worker.open[0][0]
    assert played.end_plan(worker)
    worker.state.check()
    return plan


def kinds(played: World, plan: SweepPlan) -> list[tuple[str, bool, bool, int, list[int]]]:
    """Return for each step its first component, True for a head, True for a draft, its place and its rows."""
    runs = only(played).state.parts.routes.runs
    return [
        (runs[one.run].components[0].rstrip(b".").decode(), one.head, one.draft, one.place, one.batch) for one in plan.steps
    ]


def draft_rows(played: World) -> list[int]:
    rows = only(played).state.parts.rows
    return [s for s in rows.live() if rows.place[s] == Place.DRAFT]


# rounds --------------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_round() -> None:
    """The draft model passes the prompt and each draft but the last; then the target passes all positions at once.

    Requests to the draft model share its first pass.
    """
    played = world(BASE, SMALL)
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by(tokens=2)))
    played.submit(submission("other", [4, 5], 30, "base@w0", arrival=1.0))
    played.submit(submission("small", [6, 7], 30, "small@w0", arrival=2.0))
    worker = only(played)
    assert played.start_plan(worker)
    assert played.end_plan(worker)
    assert played.start_plan(worker)
    plan = worker.open[0][0]
    batch = worker.state.batch(plan.number)
    drafting = batch.index(draft_rows(played)[0])
    row, other, small = (batch.index(s) for s in range(3))
    assert [plan.count[i] for i in (row, other, small, drafting)] == [3, 1, 1, 4 + 1]
    assert (plan.verify, plan.drafting) == ([row], [])
    assert [(one.batch, one.target, one.lead) for one in plan.draft_rows] == [(drafting, row, 4)]
    assert kinds(played, plan) == [
        ("small/0", False, False, 0, sorted([small, drafting])),
        ("small/5", True, True, 0, [drafting]),
        ("small/0", False, False, 1, [drafting]),
        ("small/5", True, True, 1, [drafting]),
        ("base/0", False, False, -1, sorted([row, other])),
        ("small/5", True, False, -1, [small]),
        ("base/9", True, False, -1, sorted([row, other])),
    ]
    played.run()
    played.assert_quiet()


def test_rows_of_a_model_shared_with_its_draft_wait_for_the_drafts() -> None:
    """The draft model has the first layers of its target: rows without drafts share its pass, the target comes behind."""
    low = tier(BASE, 2)
    played = world(BASE, low)
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by(low, tokens=1)))
    played.submit(submission("other", [4, 5], 30, "base@w0", arrival=1.0))
    worker = only(played)
    assert played.start_plan(worker)
    assert played.end_plan(worker)
    assert played.start_plan(worker)
    plan = worker.open[0][0]
    batch = worker.state.batch(plan.number)
    drafting = batch.index(draft_rows(played)[0])
    row, other = batch.index(0), batch.index(1)
    assert kinds(played, plan) == [
        ("base/0", False, False, 0, sorted([other, drafting])),
        ("base/exit 2", True, True, 0, [drafting]),
        ("base/0", False, False, -1, [row]),
        ("base/5", False, False, -1, sorted([row, other])),
        ("base/9", True, False, -1, sorted([row, other])),
    ]
    played.run()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 30, [])


@pytest.mark.parametrize(("agreeing", "sweeps"), [(0, 41), (100, 9)])
def test_a_round_takes_fewer_sweeps_where_the_draft_is_right(agreeing: int, sweeps: int) -> None:
    """After a round in which all drafts stood, the draft model lacks two positions; else one."""
    played = world(BASE, SMALL)
    only(played).device.agreeing = agreeing
    played.submit(submission("r", [1, 2, 3], 44, "base@w0", drafts=by(tokens=4)))
    leads = []
    while not played.finished:
        leads += [one.lead for one in step(played).draft_rows]
    assert played.emitted["r"] == generate("base", [1, 2, 3], 44, [])
    assert only(played).state.number - 1 == sweeps
    assert {*leads[1:]} == ({2} if agreeing else {1})
    counters = only(played).state.counters
    assert (counters["accepted_tokens"] == 0) == (not agreeing)
    assert counters["drafted_tokens"] > 0


def test_rounds_are_reported_by_source() -> None:
    played = world(BASE, SMALL)
    verified: list[DraftsVerified] = []
    played.hear = lambda effects: [verified.extend(e for e in effects if isinstance(e, DraftsVerified)), effects][1]  # type: ignore[method-assign, func-returns-value, return-value]
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by()))
    played.run()
    assert {one.source for one in verified} == {"model"}
    assert sum(one.drafted for one in verified) == only(played).state.counters["drafted_tokens"]


def test_a_long_prompt_is_caught_up_in_chunks_beside_the_answer() -> None:
    played = world(BASE, SMALL, chunk_size=8, sweep_tokens=16)
    prompt = [*range(40)]
    played.submit(submission("r", prompt, 90, "base@w0", drafts=by(tokens=2)))
    chunks = []
    while not (plan := step(played)).draft_rows:
        batch = [i for i, row in enumerate(plan.row) if row == 1]  # the second device row
        chunks += [plan.count[i] for i in batch]
        assert plan.tokens <= 16
    assert chunks == [8, 8, 8, 8]
    assert plan.draft_rows[0].lead <= LEAD
    played.run()
    assert played.emitted["r"] == generate("base", prompt, 90, [])


def test_a_draft_row_begins_behind_the_pages_that_its_model_has_and_publishes_its_own() -> None:
    played = world(BASE, SMALL)
    prompt = [*range(30)]
    played.submit(submission("first", prompt, 50, "base@w0", drafts=by()))
    played.run()
    before = only(played).state.counters["cached_tokens"]
    played.submit(submission("small", prompt, 40, "small@w0"))
    played.run()
    assert only(played).state.counters["cached_tokens"] - before == 28, "pages of the draft row serve a request to its model"
    computed = only(played).device.computed_tokens
    played.submit(submission("again", prompt, 31, "base@w0", drafts=by(tokens=1)))
    played.submit(submission("more", prompt, 33, "base@w0", drafts=by(tokens=1)))
    played.run()
    assert only(played).device.computed_tokens - computed < 16, "and draft rows of other requests"
    played.assert_quiet()


def test_two_models_of_adapters_draft_with_their_own_deltas() -> None:
    played = world(BASE, SMALL, TUNED, SMALL_TUNED)
    played.submit(submission("r", [1, 2, 3], 30, "tuned@w0", drafts=by(SMALL_TUNED)))
    played.run()
    assert played.emitted["r"] == generate("tuned", [1, 2, 3], 30, [])
    assert only(played).device.drafts_of_models > 0


@pytest.mark.parametrize(
    "chains",
    [
        [BASE],  # no such model
        [BASE, SMALL],
        [BASE, Chain("small", (Block((*SMALL.components[:-1], replace(SMALL.components[-1], width_out=9))),), 1000)],
    ],
    ids=["missing", "there", "vocabulary"],
)
def test_only_a_model_of_equal_vocabulary_drafts(chains: list[Chain]) -> None:
    played = world(*chains)
    played.submit(submission("r", [1, 2, 3], 30, "base@w0", drafts=by()))
    played.run()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 30, [])
    there = len(chains) > 1 and chains[1] is SMALL
    assert (only(played).state.counters["drafted_tokens"] > 0) == there


def test_where_the_models_are_not_on_one_worker_the_request_goes_on_without() -> None:
    whole = pipeline(["w0", "w1"], BASE)
    played = World(["w0", "w1"], [BASE, SMALL], [whole, replica("w0", BASE), replica("w0", SMALL), replica("w1", BASE)])
    for name, route in (("r", whole.id), ("s", "base@w1"), ("t", "base@w0")):
        played.submit(submission(name, [1, 2, 1, 2], 60, route, drafts=by()))
    played.run()
    for name in "rst":
        assert played.emitted[name] == generate("base", [1, 2, 1, 2], 60, [])
    assert [worker.device.drafts_of_models > 0 for worker in played.workers.values()] == [True, False]


def test_a_draft_model_with_a_shorter_context_drafts_until_it_is_full() -> None:
    played = world(BASE, replace(SMALL, max_length=20))
    played.submit(submission("r", [1, 2, 3], 60, "base@w0", drafts=by()))
    while not played.finished:
        plan = step(played)
        assert all(plan.start[one.batch] + plan.count[one.batch] <= 20 for one in plan.draft_rows)
        assert not draft_rows(played) or only(played).state.parts.rows.length[0] <= 24
    assert played.emitted["r"] == generate("base", [1, 2, 3], 60, [])
    assert only(played).device.drafts_of_models > 0


def test_a_round_is_priced_as_the_plan_that_makes_it() -> None:
    """The policy takes D(lead) + (g - 1) D(1) + T(g + 1), by the same cost model as the plan."""
    costs = Coefficients(
        base=1.0, step=0.25, read=8.0, token=0.5, beyond=0.125, row=0.0625, context=0.03125, prefill=0.0078125,
        parameters=800.0, kv=256.0,
    )  # fmt: skip
    for count in (1, 2, 8, 16):
        played = world(BASE, SMALL)
        played.submit(submission("r", [1, 2, 3], 60, "base@w0", drafts=by(tokens=count)))
        step(played)
        played.start_plan(only(played))
        plan, routes = only(played).open[0][0], only(played).state.parts.routes
        local, own = routes.home("base@w0"), routes.home("small@w0")
        assert local is not None
        assert own is not None
        load = SweepLoad(costs, routes)
        whole = load.price(local, count + 1, count + 1, 0, (count + 1) * 3 + (count + 1) * (count + 2) // 2)
        assert whole + load.price_drafts(own, 0, 4, count) == pytest.approx(cost(plan, costs))
        assert load.price_drafts(own, 0, 4, 0) == 0.0


# memory --------------------------------------------------------------------------------------------------------------


def with_draft_row(**config: object) -> World:
    """A request whose draft row has its pages."""
    played = world(BASE, SMALL, prefix_cache=False, **config)
    played.submit(submission("r", [1, 2, 3], 40, "base@w0", drafts=by()))
    while not draft_rows(played):
        step(played)
    return played


def test_a_draft_row_leaves_its_row_to_a_waiting_request() -> None:
    played = with_draft_row(max_rows=2)
    played.submit(submission("s", [4, 5], 20, "base@w0", arrival=1.0))
    while not draft_rows(played):
        step(played)
        if "s" in played.finished:
            break
        assert len(only(played).state.parts.queue.running) == 2 or draft_rows(played)
    played.run()
    assert played.emitted["s"] == generate("base", [4, 5], 20, [])
    assert played.emitted["r"] == generate("base", [1, 2, 3], 40, [])
    played.assert_quiet()


def test_where_memory_is_short_draft_rows_give_way_before_anything_is_preempted() -> None:
    budget = 56 * CHUNK  # the pages of both requests, without any of the draft model
    played = with_draft_row(budget=budget)
    played.submit(submission("s", [4, 5], 40, "base@w0", arrival=1.0))
    played.run()
    assert played.emitted["s"] == generate("base", [4, 5], 40, [])
    assert only(played).state.counters["preemptions"] == 0
    assert only(played).device.drafts_of_models > 0


def test_the_pages_of_a_draft_row_are_its_accounts() -> None:
    """An account at its cap has no draft rows, or gives them up before any of its requests is preempted."""
    played = world(BASE, SMALL, prefix_cache=False, tenant_kv_share={"a": 0.4})
    memory = only(played).state.parts.memory
    played.submit(submission("r", [1, 2, 3], 40, "base@w0", drafts=by(), tenant="a"))
    while not draft_rows(played):
        step(played)
    rows, row = only(played).state.parts.rows, draft_rows(played)[0]
    held = memory.page_bytes(rows.route[0].kv) * rows.paged[0] + memory.page_bytes(rows.route[row].kv) * rows.paged[row]
    assert memory.pages.accounts.held("a") == held
    played.run()
    played.assert_quiet()


def test_after_it_gave_way_a_draft_row_comes_back_later() -> None:
    played = world(BASE, SMALL)
    played.submit(submission("r", [1, 2, 3], 200, "base@w0", drafts=by()))
    while not draft_rows(played):
        step(played)
    rows = only(played).state.parts.rows
    assert only(played).state._sequences.draft_rows.give_way() is True
    length = rows.length[0]
    while not draft_rows(played):
        step(played)
    assert length + REST <= rows.length[0] <= length + REST + 20
    played.run()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 200, [])


def test_a_draft_model_that_goes_stops_the_drafts_and_not_the_request() -> None:
    played = with_draft_row()
    played.start_plan(only(played))  # a plan with the draft row is open
    played.publish([replica("w0", BASE)])
    played.deliver(("head", "w0"))
    only(played).state.check()
    assert [only(played).state.parts.rows.status[s] for s in draft_rows(played)] == [Status.LEAVING]
    played.end_plan(only(played))
    only(played).state.check()
    assert not draft_rows(played)
    drafted = only(played).device.drafts_of_models
    played.run()
    assert only(played).device.drafts_of_models == drafted
    assert played.emitted["r"] == generate("base", [1, 2, 3], 40, [])
    played.assert_quiet()


def test_forecasts_play_without_draft_rows() -> None:
    played = with_draft_row()
    played.start_plan(only(played))
    fork = only(played).state.fork()
    fork.without_device()
    plan, result = only(played).open[0]
    fork.commit(plan, replace(result, verified=[]), 0.0)
    fork.check()
    assert all(fork.parts.rows.place[s] != Place.DRAFT for s in fork.parts.rows.live())
    following = fork.plan(0.0)
    assert following is not None
    assert following.count == [1]
    assert fork.repeat(following) > 1


def test_a_copy_and_a_snapshot_go_on_alike() -> None:
    """With a draft row that catches up, and a request that rests from its own."""
    played = world(BASE, SMALL, chunk_size=8, prefix_cache=False)
    played.submit(submission("r", [*range(9)], 60, "base@w0", drafts=by()))
    while not draft_rows(played):
        step(played)
    state = only(played).state
    state._sequences.draft_rows.end(0, rest=True)
    played.submit(submission("s", [*range(50)], 90, "base@w0", drafts=by(), arrival=1.0))
    while not state.parts.drafts.behind:
        step(played)
    assert state.parts.drafts.rests(0, state.parts.rows.length[0])
    again = type(state).restore(state.snapshot())
    again.check()
    assert again.digest() == state.digest() == state.fork().digest()
    assert state.plan(0.0) == again.plan(0.0)


# laws ----------------------------------------------------------------------------------------------------------------


class Schedule(DraftSchedule):
    """One seeded play: two workers, little memory, draft models that come and go."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        homes = [replica(worker, one) for one in (BASE, TUNED) for worker in ("w0", "w1")]
        homes.append(pipeline(["w0", "w1"], BASE))
        models = [replica(worker, one) for one in (SMALL, SMALL_TUNED) for worker in ("w0", "w1")]
        tiers = [replica("w0", tier(BASE, 1))]
        chunks = chance.choice([28, 64, 200])
        longest = 32 if chunks < 60 else 60
        world = World(
            ["w0", "w1"], [BASE, TUNED, SMALL, SMALL_TUNED, tier(BASE, 1)], [*homes, *models, *tiers],
            budget=chunks * CHUNK, max_rows=chance.choice([2, 8, 16]),
            chunk_size=8, sweep_tokens=chance.choice([8, 24, 64]), prefix_cache=chance.random() < 0.7,
            **({"tenant_kv_share": {"a": 0.6}} if chance.random() < 0.3 else {}),
        )  # fmt: skip
        for worker in world.workers.values():
            worker.device.agreeing = chance.choice([0, 50, 80, 100])
        super().__init__(chance, world, homes, models, 0.85, tiers)
        self.longest = longest

    def forget(self) -> None:
        for back in self.world.returned:  # a request to a draft model that went
            if back.request in self.want and self.world.submitted[back.request].route.startswith("small"):
                del self.want[back.request]

    def submit(self, name: str, arrival: float) -> None:
        length = self.chance.choice([0, 2, 4, 20])
        prompt = [self.chance.randrange(2)] * length + [self.chance.randrange(50) for _ in range(4)]
        limit, stop = min(self.longest, len(prompt) + self.chance.randrange(1, 45)), [self.chance.randrange(150)]
        there = [one for one in self.homes if {hop.worker for hop in one.hops} <= {*self.world.workers}]
        there += [one for one in self.drawing if one.home in self.world.workers and self.chance.random() < 0.3]
        there = [one for one in there if one.id in {route.id for route in self.world.update.routes}]
        route = self.chance.choice(there)
        self.want[name] = generate(route.application, prompt, limit, stop)
        drafts = DraftOptions(
            prompt=self.chance.random() < 0.2, tokens=self.chance.choice([0, 1, 2, 4, 8]),
            tiers=["base:1"] if self.chance.random() < 0.2 else [],
            prediction=[token ^ (self.chance.random() < 0.3) for token in self.want[name]] * (self.chance.random() < 0.2),
            model=self.chance.choice(["small", "small", "small tuned", ""]),
        )  # fmt: skip
        more = {"stop": stop, "arrival": arrival, "drafts": drafts, "tenant": self.chance.choice("ab")}
        self.world.submit(submission(name, prompt, limit, route.id, **more))


@claim(
    "Drafts by another model change no token, over a thousand schedules of preemption, moves and deaths",
    of="drafts",
)
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_tokens_are_those_without_drafts(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        Schedule(seed).play()


def test_the_schedules_draft() -> None:
    """Most of them have drafts by another model that are verified, and some of these stand."""
    drafted: list[int] = []
    accepted = 0
    for seed in range(20):
        schedule = Schedule(seed)
        schedule.play()
        workers = schedule.world.workers.values()
        drafted.append(sum(worker.device.drafts_of_models for worker in workers))
        accepted += sum(worker.state.counters["accepted_tokens"] for worker in workers)
    assert sum(count > 0 for count in drafted) > 10
    assert sum(drafted) > 200
    assert accepted > 200
