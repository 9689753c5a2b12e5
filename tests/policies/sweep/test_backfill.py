"""Offline sequences fill what online ones leave, delay them by no more than the cost model's part, and give way."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost, features
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.policies.requests.admission import YIELDED
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import Cancelled, CostsLearned
from blockwright.policies.sweep.offline_capacity import offline_bytes
from blockwright.policies.sweep.reserve import reserved_slots
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, generate, pipeline, replica
from .offline_world import BASE, CHUNK, COSTS, commit, offline, online, world


def requests(state: SweepState, plan: SweepPlan) -> dict[str, int]:
    """Tokens of each request in an open plan."""
    batch = state.batch(plan.number)
    return {state.parts.rows.submission[s].request: count for s, count in zip(batch, plan.count, strict=True)}


def busy(state: SweepState, count: int, answer: int = 40, prompt: int = 8) -> None:
    """So many offline sequences in the middle of their answers."""
    for i in range(count):
        state.apply(offline(f"o{i}", [50 + i] * prompt, answer, float(i), ("left", "right")[i % 2]), 0.0)
    while state.parts.queue.offline_waiting or any(
        state.parts.rows.known[s] - state.parts.rows.planned[s] > 1 for s in state.parts.queue.running
    ):
        plan = state.plan(0.0)
        assert plan is not None
        commit(state, plan)


def without_offline(state: SweepState) -> SweepState:
    """A copy without them."""
    copy = state.fork()
    for s in copy.parts.rows.live():
        if copy.parts.rows.is_offline(s):
            copy.apply(Cancelled(copy.parts.rows.submission[s].request), 0.0)
    return copy


# time ----------------------------------------------------------------------------------------------------------------


@claim("Offline requests never delay a plan of online ones by more than the setting allows", of="offline", headline=True)
@given(seed=st.integers(0, 10_000), delay=st.sampled_from([0.0, 0.03, 0.2]), known=st.booleans())
@examples(60)
def test_online_rows_are_those_of_a_worker_without_offline_ones_and_their_sweeps_hardly_longer(
    seed: int, delay: float, known: bool
) -> None:
    """Whatever runs, as long as there is memory: plan by plan, to the bound of the cost model."""
    chance = random.Random(seed)
    costs = COSTS if known else None
    state = world(400, offline_delay=delay, costs=costs, max_rows=16).workers["w0"].state
    for i in range(12):
        make, first = (offline, 3) if chance.random() < 0.6 else (online, 0)  # what they share is other pages than those
        prompt = [first + chance.randrange(3)] * chance.randint(1, 30)
        state.apply(make(f"r{i}", prompt, chance.randint(1, 12), float(i)), 0.0)
        for _ in range(chance.randrange(3)):
            before = without_offline(state)
            expected = before.plan(0.0)
            plan = state.plan(0.0)
            if plan is None:
                break
            outcome = requests(state, plan)
            mine = {name: count for name, count in outcome.items() if not _is_offline(state, name)}
            if expected is not None and expected.row:
                assert mine == requests(before, expected)
                if known:
                    assert cost(plan, COSTS) <= cost(expected, COSTS) + delay * fixed(expected) + 1e-9
            commit(state, plan)
            state.check()


def fixed(plan: SweepPlan) -> float:
    """Seconds that the sweep takes however few its rows are."""
    _, steps, read, *_ = features(plan, COSTS.parameters, COSTS.kv)
    return COSTS.base + COSTS.step * steps + COSTS.read * read


def test_what_rides_beside_a_long_prompt_is_measured_by_what_a_short_sweep_takes() -> None:
    """Answers take 1 + delay times as long however many tokens come a second; a fifth of a long one is 20 tokens."""
    linear = Coefficients(base=0.01, token=0.0025)
    wide = {"max_rows": 16, "sweep_tokens": 128, "chunk_size": 128, "pages": 900}
    state = world(offline_delay=0.2, costs=linear, **wide).workers["w0"].state
    busy(state, 10)
    state.apply(online("long", [1] * 99, 20), 0.0)
    plan = state.plan(0.0)
    assert plan is not None
    assert requests(state, plan) == {"long": 99}
    commit(state, plan)
    state.parts.config = replace(state.config, offline_delay=0.3)
    state.apply(online("next", [2] * 20, 20), 0.0)
    plan = state.plan(0.0)
    assert plan is not None
    outcome = requests(state, plan)
    assert (outcome.pop("long"), outcome.pop("next")) == (1, 20)
    assert [*outcome.values()] == [1], "a token is a quarter of the fixed part"


def _is_offline(state: SweepState, request: str) -> bool:
    s = state.parts.rows.find(request)
    return s is not None and state.parts.rows.is_offline(s)


def test_up_to_the_knee_offline_rows_ride_for_what_a_token_costs() -> None:
    """Two online rows, five offline ones: one more token is 1 % of the sweep, beyond the eighth row 20 %."""
    state = world(offline_delay=0.1, max_rows=16).workers["w0"].state
    busy(state, 10)
    for i in range(2):
        state.apply(online(f"n{i}", [i], 20), 0.0)
    commit(state, state.plan(0.0))  # type: ignore[arg-type]
    plan = state.plan(0.0)
    assert plan is not None
    outcome = requests(state, plan)
    assert {"n0", "n1"} < set(outcome)
    assert [name for name in outcome if name.startswith("o")] == ["o0", "o1", "o2", "o3", "o4", "o5"]  # the oldest


def test_without_online_rows_sweeps_are_short_and_not_planned_ahead() -> None:
    state = world(offline_sweep=1.0, sweep_tokens=64, max_rows=32, pages=900).workers["w0"].state
    busy(state, 20, answer=200)
    state.parts.config = replace(state.config, offline_sweep=0.03)
    plan = state.plan(0.0)
    assert plan is not None
    assert cost(plan, COSTS) <= 0.03 < cost(plan, COSTS) + 0.003  # one more row would be too many
    assert state.plan(0.0) is None, "whoever comes would wait for two"
    state.apply(online("n", [1, 2, 3], 4), 0.0)
    ahead = state.plan(0.0)
    assert ahead is not None
    assert requests(state, ahead)["n"] == 3
    for one in (plan, ahead):
        commit(state, one)
    state.check()


def test_a_single_row_runs_however_long_it_takes() -> None:
    state = world(offline_sweep=1e-6).workers["w0"].state
    state.apply(offline("o", [1, 2], 3), 0.0)
    sizes = []
    while (plan := state.plan(0.0)) is not None:
        sizes.append(plan.tokens)
        commit(state, plan)
    assert sum(sizes) == 2 + 2
    assert not state.parts.rows.live()


# rows and pages ------------------------------------------------------------------------------------------------------


@claim("Offline requests give rows and pages back within a sweep", of="offline")
def test_a_row_is_kept_free_for_whoever_comes() -> None:
    state = world(max_rows=4).workers["w0"].state
    busy(state, 3)
    state.apply(offline("late", [9], 4), 0.0)
    plan = state.plan(0.0)
    assert plan is not None
    assert [(of.request, of.reason) for of in state.take_effects().news if hasattr(of, "reason")] == [("late", YIELDED)]
    commit(state, plan)
    for i in range(4):
        state.apply(online(f"n{i}", [i], 30), 0.0)
    started = []
    for _ in range(4):
        plan = state.plan(0.0)
        assert plan is not None
        started.append({name for name in requests(state, plan) if name.startswith("n")})
        commit(state, plan)
    assert [len(names) for names in started] == [1, 2, 3, 4] or len(started[0]) > 1
    assert state.running == 4
    assert not state.parts.queue.offline
    assert state.counters["offline_yielded"] == 4
    assert state.counters["preemptions"] == 0, "offline sequences are not counted as such"


@claim("Offline requests give rows and pages back within a sweep", of="offline")
def test_pages_go_to_an_online_request_that_needs_them() -> None:
    """Offline sequences hold most of the memory; a long prompt takes it, and nobody online is preempted."""
    state = world(64, max_rows=16).workers["w0"].state
    busy(state, 6, answer=60, prompt=20)
    assert sum(offline_bytes(state.parts).values()) >= 30 * CHUNK
    state.apply(online("n", list(range(160)), 20), 0.0)
    plans = 0
    while state.parts.rows.find("n") is not None:
        plan = state.plan(0.0)
        assert plan is not None
        assert "n" in requests(state, plan), "it waits for memory that offline sequences have"
        commit(state, plan)
        state.check()
        plans += 1
    assert plans == 20 + 160 // 8 - 1
    assert state.counters["offline_yielded"] >= 1
    assert state.counters["preemptions"] == 0


def test_what_online_sequences_take_of_the_reserve_comes_back_with_the_next_plan() -> None:
    """A quarter of the pages of a sweep is what they take; offline sequences that need none give them back all the same."""
    state = world(64, max_rows=16).workers["w0"].state
    busy(state, 6, answer=200, prompt=20)
    while state.running > 1 and not state.counters["offline_yielded"]:  # until offline sequences have all but the reserve
        commit(state, state.plan(0.0))  # type: ignore[arg-type]
    pages, (arena, reserve) = state.parts.memory.pages, *reserved_slots(state.parts).items()
    state.apply(online("n", list(range(24)), 40), 0.0)
    short = 0
    for _ in range(20):
        plan = state.plan(0.0)
        assert plan is not None
        rows = state.parts.rows
        gone = sum(
            pages.span(handle).layers
            for s in rows.with_status(Status.LEAVING)
            for handle in rows.handles(s)
            if pages.references(handle) == 1
        )
        taken = sum(pages.span(h).layers for s, start in zip(state.batch(plan.number), plan.start, strict=True)
                    if not rows.is_offline(s) and start % 4 == 0 for h in rows.page(s, start // 4))  # fmt: skip
        free = pages.allocator(arena).room + pages.idle.slots[arena]
        assert free + gone + taken >= reserve, "but for what the plan itself has taken of it"
        short += free < reserve
        commit(state, plan)
    assert short > 0, "the reserve was never touched"


def test_rows_that_online_sequences_take_of_the_reserve_come_back_with_the_next_plan() -> None:
    """An eighth of 16, also where no online sequence waits for one."""
    state = world(900, max_rows=16, offline_delay=1e9).workers["w0"].state
    busy(state, 14, answer=200)
    table = state.parts.rows
    assert table.free_rows == 2
    for i in range(4):
        state.apply(online(f"n{i}", [i], 60), 0.0)
        for _ in range(2):
            plan = state.plan(0.0)
            assert plan is not None
            commit(state, plan)
        assert state.parts.queue.online == i + 1
        assert table.free_rows + table.leaving == 2
        assert state.counters["offline_yielded"] == i + 1, "no more than what was taken"


def test_offline_sequences_leave_a_part_of_the_memory() -> None:
    state = world(64, max_rows=16).workers["w0"].state
    busy(state, 12, answer=200)
    for _ in range(100):
        plan = state.plan(0.0)
        assert plan is not None, "the oldest goes on at the cost of younger ones"
        commit(state, plan)
        state.check()
        pages = state.parts.memory.pages
        assert (
            state.running == 1 or pages.allocator(next(iter(pages.idle.slots))).room + sum(pages.idle.slots.values()) >= 12
        )
    assert state.counters["offline_yielded"] > 0


def test_one_that_is_alone_may_have_all_memory() -> None:
    made = world(32)
    made.submit(offline("o", [1] * 40, 32 * 4 - 40))
    made.run()
    assert made.emitted["o"] == generate("base", [1] * 40, 32 * 4, [])
    made.assert_quiet()


def test_sides_are_counted_apart_and_can_be_capped() -> None:
    state = world(tenant_kv_share={":left": 0.2, "*": 0.1}).workers["w0"].state
    busy(state, 4, answer=60)
    while not state.counters["offline_yielded"]:
        plan = state.plan(0.0)
        assert plan is not None
        commit(state, plan)
        assert state.parts.memory.pages.accounts.held(":left") <= 20 * CHUNK
    assert offline_bytes(state.parts)[":right"] >= 20 * CHUNK, "what holds for everybody else does not hold for a side"
    assert [state.parts.rows.find(f"o{i}") is not None for i in range(4)] == [True, True, False, True]


# whatever happens ----------------------------------------------------------------------------------------------------


class BlendedWorld(World):
    """What is given back comes again once the world has come to rest."""

    def play(self, seed: int) -> None:
        for turn in range(200):
            self.run(seed + turn)
            returned, self.returned = self.returned, []
            if not returned:
                return
            for news in returned:
                of = self.submitted[news.request]
                if news.reason == YIELDED and news.attempt == of.attempt and news.request not in self.finished:
                    self.hand_over(news.request, of.route)
        raise AssertionError("offline requests do not end")


@given(
    seed=st.integers(0, 10_000), pages=st.sampled_from([24, 40, 100]), rows=st.sampled_from([1, 2, 4, 9]),
    across=st.booleans(), delay=st.sampled_from([0.0, 0.03, 1.0]), costs=st.sampled_from([COSTS, None]),
)  # fmt: skip
@examples(60)
def test_every_answer_is_complete_whoever_gives_way(
    seed: int, pages: int, rows: int, across: bool, delay: float, costs: Coefficients | None
) -> None:
    routes = [replica("w0", BASE), replica("w1", BASE), *([pipeline(["w0", "w1"], BASE)] if across else [])]
    made = BlendedWorld(["w0", "w1"], [BASE], routes, budget=pages * CHUNK, chunk_size=8, max_rows=rows, sweep_tokens=32,
                        offline_delay=delay, costs=costs)  # fmt: skip
    chance = random.Random(seed)
    asked = {}
    for i in range(10):
        prompt = [chance.randrange(2)] * chance.randint(1, 20)
        limit = len(prompt) + chance.randint(1, 40)
        make = offline if chance.random() < 0.6 else online
        made.submit(make(f"r{i}", prompt, limit - len(prompt), float(i), route=chance.choice(routes).id))
        asked[f"r{i}"] = generate("base", prompt, limit, [])
        for _ in range(chance.randrange(8)):
            kind, what = chance.choice(made.moves())
            made._move(kind, what)
    made.play(seed)
    assert made.emitted == asked
    made.assert_quiet()


@given(seed=st.integers(0, 10_000))
@examples(30)
def test_copies_go_on_alike(seed: int) -> None:
    """A restored snapshot and a fork plan what the state itself plans, and have its digest."""
    chance = random.Random(seed)
    state = world(40, max_rows=6).workers["w0"].state
    for i in range(12):
        make = offline if i % 3 else online
        state.apply(make(f"r{i}", [chance.randrange(2)] * chance.randint(1, 20), chance.randint(1, 30), float(i)), 0.0)
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.2:
                state.apply(CostsLearned(replace(COSTS, read=chance.choice([0.0, 0.01, 0.1]))), 0.0)
            others = [state.fork(), SweepState.restore(state.snapshot())]
            plan = state.plan(0.0)
            assert [other.plan(0.0) for other in others] == [plan, plan]
            for one in (state, *others) if plan is not None else ():
                commit(one, plan)
            assert {other.digest() for other in others} == {state.digest()}
    state.check()
