"""Turns of tiers: short sweeps only where they gain, never more in a row than allowed, and the same tokens in any case."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.events import SatOut
from blockwright.policies.sweep.state import SweepState
from blockwright.policies.sweep.tier_turns import GAIN, Turn, best_exit
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from ..sweep_world import World, chain, generate, pipeline, replica, submission, tier

TOP = chain("base", 8)
LOW, MIDDLE = tier(TOP, 1), tier(TOP, 4)
FAMILY = [TOP, LOW, MIDDLE]
SIZED = Coefficients(base=0.1, step=0.01, read=1.0, token=0.1, beyond=0.1, row=0.02, parameters=1700.0, kv=1.0)


def world(**more: object) -> World:
    numbers: dict[str, object] = {"chunk_size": 8, "max_rows": 12, "sweep_tokens": 48, **more}
    return World(["w0"], FAMILY, [replica("w0", one) for one in FAMILY], **numbers)  # type: ignore[arg-type]


def ask(made: World, request: str, name: str, new: int = 30, prompt: int = 5, **more: object) -> None:
    number = len(made.submitted)
    tokens = [(11 * number + place) % 40 for place in range(prompt)]
    made.submit(submission(request, tokens, prompt + new, f"{name}@w0", arrival=float(number), **more))


def requests_of(made: World, plan: SweepPlan) -> set[str]:
    worker = made.workers["w0"]
    return {worker.state.parts.rows.submission[s].request for s in worker.state.batch(plan.number)}


def step(made: World) -> set[str]:
    """Make and end one plan; return its requests."""
    worker = made.workers["w0"]
    plan = worker.state.plan(made.now)
    made.collect(worker)
    if plan is None:
        return set()
    found = requests_of(made, plan)
    worker.state.commit(plan, worker.device.execute(plan, worker.state.batch(plan.number)), made.now)
    made.collect(worker)
    worker.state.check()
    return found


def assert_answers(made: World) -> None:
    for request, of in made.submitted.items():
        name = of.route.removesuffix("@w0")
        assert made.emitted[request] == generate(name, of.tokens[: of.prompt_length], of.max_length, []), request


# the rule ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "limit", "whole", "short", "found"),
    [
        # two rows go on and one waits, a short sweep takes a fifth: tokens take 15, 6 + 2 * 3, 7 + 2 * 7 / 3 of three rows
        ("auto", 2, (3, 5.0), [(2, 1.0)], (0, 2)),
        ("auto", 1, (3, 5.0), [(2, 1.0)], (0, 1)),
        ("auto", 64, (3, 5.0), [(2, 1.0)], (0, 2)),  # with a third: 8 + 2 * 2
        ("auto", 2, (2, 2.0), [(1, 1.0)], (0, 0)),  # one waits 3, the other 1.5: more than 2 each
        ("auto", 2, (2, 4.0), [(0, 0.0)], (0, 0)),
        ("auto", 2, (4, 8.0), [(1, 1.0), (3, 2.0)], (1, 2)),
        ("decoupled", 2, (2, 2.0), [(1, 1.0)], (0, 2)),
        ("decoupled", 3, (2, 2.0), [(0, 0.0), (1, 1.0)], (1, 3)),
        ("decoupled", 2, (2, 2.0), [(0, 0.0)], (0, 0)),
        ("lockstep", 2, (3, 4.0), [(2, 1.0)], (0, 0)),
    ],
)
def test_short_sweeps_end_where_tokens_take_least(
    mode: str, limit: int, whole: tuple[int, float], short: list[tuple[int, float]], found: tuple[int, int]
) -> None:
    assert best_exit(mode, limit, whole, short) == found


@pytest.mark.parametrize(("saved", "turns"), [(GAIN / 2, 0), (GAIN * 2, 1)])
def test_a_saving_too_small_is_left(saved: float, turns: int) -> None:
    """A row of each tier: with a short sweep of S they take 1.5 (S + T) together, instead of 2 T."""
    assert best_exit("auto", 1, (2, 3.0), [(1, (2 * (1 - saved) / 1.5 - 1) * 3.0)]) == (0, turns)


def test_a_turn_takes_its_tiers() -> None:
    assert [Turn(1, 2).takes(tier) for tier in range(4)] == [False, True, True, False]
    assert Turn().whole
    assert not Turn(0, 3).whole


# sweeps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_lower_tiers_have_so_many_sweeps_to_one_of_all(turns: int) -> None:
    made = world(tier_sweeps="decoupled", tier_turns=turns)
    ask(made, "low", LOW.application)
    ask(made, "top", "base")
    step(made)  # the prompts
    seen = [step(made) for _ in range(3 * (turns + 1))]
    assert seen == [*[{"low"}] * turns, {"low", "top"}] * 3
    made.run()
    assert_answers(made)


def test_sweeps_end_at_the_exit_where_tokens_take_least() -> None:
    """The middle one of three tiers sits out with the top where the lowest has most rows; else it goes on."""
    made = world(tier_sweeps="auto", costs=SIZED)
    for number in range(6):
        ask(made, f"low {number}", LOW.application)
    ask(made, "middle", MIDDLE.application)
    ask(made, "top", "base")
    assert len(step(made)) == 8, "the prompts"
    assert {len(step(made)) for _ in range(3)} == {6, 8}
    made = world(tier_sweeps="auto", costs=SIZED)
    for number in range(6):
        ask(made, f"middle {number}", MIDDLE.application)
    ask(made, "low", LOW.application)
    ask(made, "top", "base")
    assert len(step(made)) == 8, "the prompts"
    assert {len(step(made)) for _ in range(3)} == {7, 8}


def test_a_short_sweep_has_no_prompts_and_starts_nothing() -> None:
    """Prompts and offline rows that come meanwhile wait for the next sweep of all tiers, whatever their tier."""
    made = world(tier_sweeps="decoupled")
    ask(made, "low", LOW.application)
    ask(made, "top", "base")
    ask(made, "offline", LOW.application, priority=offline_urgency())
    step(made)
    assert step(made) == {"low"}
    ask(made, "next", LOW.application, prompt=20)
    assert step(made) == {"low"}
    assert "next" in step(made)
    assert [step(made) for _ in range(3)][:2] == [{"low"}] * 2, "its second chunk waits as well"
    made.run()
    assert_answers(made)


@pytest.mark.parametrize("names", [[LOW.application] * 2, ["base"] * 2])
def test_tiers_without_others_never_wait(names: list[str]) -> None:
    made = world(tier_sweeps="decoupled")
    for number, name in enumerate(names):
        ask(made, f"r{number}", name, prompt=5 + 12 * number)
    made.run()
    assert not made.workers["w0"].state.counters["short_sweeps"]
    assert_answers(made)


def commit(state: SweepState, plan: SweepPlan, seconds: float) -> list[SatOut]:
    """End a plan that took this long; return what it says of the requests that sat it out."""
    state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample), seconds=seconds), 0.0)
    return [news for news in state.take_effects().news if isinstance(news, SatOut)]


@claim("A request reports how many steps of lower tiers it sat out, and how long they took on the device", of="families")
def test_a_request_tells_how_long_it_sat_out() -> None:
    made = world(tier_sweeps="decoupled")
    ask(made, "low", LOW.application, new=40)
    ask(made, "top", "base", new=5)
    state = made.workers["w0"].state
    said: list[SatOut] = []
    while (plan := state.plan(0.0)) is not None:
        said += commit(state, plan, seconds=0.5 + plan.number)
    assert said == [SatOut("head/gateway", "top", 1, 1, 0.5 + number) for number in (2, 3, 5, 6, 8, 9, 11, 12)]
    assert (state.counters["short_sweeps"], state.counters["rows_sat_out"]) == (8, 8)


def test_parked_time_survives_copies_and_goes_to_no_later_request() -> None:
    """A short sweep is open. Its parked request is cancelled, and another one takes the same index before it ends."""
    made = world(tier_sweeps="decoupled")
    ask(made, "low", LOW.application)
    ask(made, "top", "base")
    step(made)
    state = made.workers["w0"].state
    index = state.parts.rows.find("top")
    plan = state.plan(0.0)
    assert plan is not None
    copies = [state.fork(), SweepState.restore(state.snapshot())]
    made.cancel("top")
    ask(made, "next", "base")
    assert state.parts.rows.find("next") == index
    state.take_effects()
    parked = [SatOut("head/gateway", "top", 1, 1, 2.5)]
    assert [commit(one, plan, 2.5) for one in (state, *copies)] == [parked] * 3
    assert copies[0].digest() == copies[1].digest()


def test_while_sequences_cross_workers_sweeps_are_whole() -> None:
    routes = [*[replica("w0", one) for one in FAMILY], pipeline(["w0", "w1"], TOP)]
    made = World(["w0", "w1"], FAMILY, routes, chunk_size=8, tier_sweeps="decoupled")
    ask(made, "low", LOW.application)
    ask(made, "top", "base")
    made.submit(submission("crossing", [1, 2, 3], 60, routes[-1].id))
    while "crossing" not in made.finished:
        made.start_plan(made.workers["w0"])
        made.start_plan(made.workers["w1"])
        for pair in [pair for pair, messages in made.wire.items() if messages]:
            made.deliver(pair)
        made.end_plan(made.workers["w0"])
        made.end_plan(made.workers["w1"])
        if len(made.workers["w0"].state.parts.leases):
            before = made.workers["w0"].state.counters["short_sweeps"]
        if made.emitted["crossing"]:
            assert before == made.workers["w0"].state.counters["short_sweeps"]
    made.run()


def test_separate_tiers_take_turns_and_share_no_sweep() -> None:
    made = world(group_batching=False, budget=400 * 64 * 1024)
    for number in range(9):
        name = FAMILY[number % 3].application
        ask(made, f"{name} {number}", name, new=6 + number, prompt=4 + 3 * number)
    ask(made, "base offline", "base", priority=offline_urgency())
    seen: list[str] = []
    while found := step(made):
        (name,) = {request.split()[0] for request in found}
        seen.append(name)
    assert Counter(seen).keys() == {one.application for one in FAMILY}
    turns = [LOW.application, MIDDLE.application, "base"]
    assert any(seen[n : n + 9] == turns * 3 for n in range(len(seen))), "once all have started"
    assert_answers(made)


# laws ----------------------------------------------------------------------------------------------------------------

MODES = [
    {"tier_sweeps": "lockstep"}, {"tier_sweeps": "decoupled", "tier_turns": 1},
    {"tier_sweeps": "decoupled", "tier_turns": 3}, {}, {"costs": SIZED}, {"group_batching": False},
]  # fmt: skip


@claim("A row of a higher tier sits out no more steps in a row than tier_turns, under any load", of="families")
@pytest.mark.parametrize("seed", parts(60, 4))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [60, 400])
def test_no_row_waits_longer_than_allowed(seed: int, mode: dict[str, object], chunks: int) -> None:
    chance = random.Random(seed)
    made = world(budget=chunks * 64 * 1024, **mode)
    worker, most = made.workers["w0"], int(made.numbers.get("tier_turns", 2))  # type: ignore[call-overload]
    waited: Counter[str] = Counter()
    for turn in range(120):
        if chance.random() < 0.2:
            ask(made, f"r{turn}", chance.choice(FAMILY).application, new=chance.randint(1, 20), prompt=chance.randint(1, 24))
        rows = worker.state.parts.rows
        there = {rows.submission[s].request for s in worker.state.parts.queue.running}
        short = worker.state.counters["short_sweeps"]
        found = step(made)
        parted = worker.state.counters["short_sweeps"] > short
        waited = Counter({request: (waited[request] + 1) * parted for request in there - found})
        assert all(count <= most for count in waited.values())
    made.run(seed)
    assert_answers(made)


@pytest.mark.parametrize("mode", MODES)
def test_copies_take_the_same_turns(mode: dict[str, object]) -> None:
    """A snapshot and a fork go on as the original does, from any place between two whole sweeps."""
    made = world(**mode)
    for number in range(7):
        name = FAMILY[number % 3].application
        ask(made, f"r{number}", name, new=9 + number)
    for _ in range(8):
        step(made)
        state = made.workers["w0"].state
        assert SweepState.restore(state.snapshot()).digest() == state.digest() == state.fork().digest()
        plans = [
            [(plan.row, plan.start) for plan in played(one)] for one in (state.fork(), SweepState.restore(state.snapshot()))
        ]
        assert plans[0] == plans[1]


def test_without_lower_tiers_nothing_is_weighed() -> None:
    """A worker with one tier plans as before, and its state has no turns."""
    plans = []
    for mode in MODES[:4]:
        made = World(["w0"], [TOP], [replica("w0", TOP)], chunk_size=8, **mode)  # type: ignore[arg-type]
        for number in range(3):
            made.submit(submission(f"r{number}", [number] * 9, 30, "base@w0", arrival=float(number)))
        plans.append([(plan.row, plan.start, plan.count) for plan in played(made.workers["w0"].state)])
        assert not made.workers["w0"].state.parts.weighs_turns
    assert plans[1:] == plans[:1] * 3


def played(state: SweepState) -> list[SweepPlan]:
    plans = []
    while (plan := state.plan(0.0)) is not None:
        plans.append(plan)
        state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), 0.0)
    return plans


def test_jumps_end_where_a_short_sweep_is_next() -> None:
    made = world(costs=SIZED)
    for number in range(5):
        ask(made, f"low {number}", LOW.application, new=100)
    ask(made, "top", "base", new=20)
    state = made.workers["w0"].state
    assert len(step(made)) == 6, "the prompts"
    repeats: dict[int, set[int]] = {}
    while state.running > 4 and (plan := state.plan(0.0)) is not None:
        repeats.setdefault(len(plan.row) * 10 + state.running, set()).add(state.repeat(plan))
        state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), 0.0)
    assert repeats.pop(56) == repeats.pop(66) == {1}
    assert max(repeats.pop(55)) > 1, "once the top has ended"
    assert not repeats
