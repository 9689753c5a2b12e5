"""A jump leads to the very state that stepping leads to: over page borders, ends, little memory, several routes."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from blockwright.policies.model.chain import Chain
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..event_tape import Driver, Tape, make_state
from ..sweep_world import World, chain, replica, submission, tier

BASE = chain("base")
TUNED = chain("tuned", own_from=3)
OTHER = chain("other", own_from=0, heads=2)
LOW = tier(BASE, 1)


def step_to(state: SweepState, number: int) -> None:
    while state.number < number and (plan := state.plan(0.0)) is not None:
        state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), 0.0)


def jump_to(state: SweepState, number: int) -> int:
    """How many sweeps were skipped."""
    skipped = 0
    while state.number < number and (plan := state.plan(0.0)) is not None:
        skipped += state.jump(plan, state.repeat(plan), 0.0) - 1
    return skipped


@claim("Several sweeps planned at once lead to the same state as single ones", of="serving")
@given(
    seed=st.integers(0, 10_000), chunks=st.sampled_from([12, 16, 24, 60]), rows=st.sampled_from([2, 4, 9]),
    applications=st.sampled_from([[BASE], [BASE, TUNED], [BASE, OTHER], [BASE, LOW], [BASE, LOW]]),
    page=st.sampled_from([1, 4, 5]),
    turns=st.sampled_from([{}, {"tier_sweeps": "decoupled"}, {"tier_sweeps": "lockstep"}, {"group_batching": False}]),
    tenants=st.sampled_from(["a", "ab", "abc"]), share=st.sampled_from([{}, {"a": 0.5}, {"*": 0.3}]), cache=st.booleans(),
)  # fmt: skip
@example(seed=5042, chunks=16, rows=4, applications=[BASE, LOW], page=5, turns={}, tenants="abc", share={}, cache=True)
@examples(150)
def test_jumping_equals_stepping(
    seed: int,
    chunks: int,
    rows: int,
    applications: list[Chain],
    page: int,
    turns: dict[str, object],
    tenants: str,
    share: dict[str, float],
    cache: bool,
) -> None:
    chains = [chain(a.application, own_from=[None, 3, 0][i + (a is OTHER)], heads=1 + (a is OTHER), page_size=page)
              for i, a in enumerate(applications)]  # fmt: skip
    if applications[-1] is LOW:
        chains[-1] = tier(chains[0], 1)
    routes = [replica("w0", c) for c in chains]
    size = {"budget": chunks * 64 * 1024, "page_size": page}
    shares = {"tenant_kv_share": share, "tenant_weights": {"b": 3}, "prefix_cache": cache, **turns}
    world = World(["w0"], chains, routes, chunk_size=16, max_rows=rows, sweep_tokens=64, **size, **shares)
    chance = random.Random(seed)
    for i in range(9):
        prompt = [chance.randrange(2)] * chance.randint(1, 14)
        limit = len(prompt) + chance.choice([1, 6, 25, 40])
        more = {"page_size": page, "arrival": float(i), "tenant": tenants[i % len(tenants)]}
        world.submit(submission(f"r{i}", prompt, limit, routes[i % len(routes)].id, **more))
    stepping = world.workers["w0"].state
    jumping = stepping.fork()
    while True:
        before = jumping.number
        jump_to(jumping, before + 1)
        jumping.check()
        step_to(stepping, jumping.number)
        assert stepping.digest() == jumping.digest(), f"from sweep {before} to {jumping.number}"
        if jumping.number == before:
            break
    assert not stepping.parts.rows.live()


def test_a_jump_crosses_page_borders_up_to_the_first_end() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], chunk_size=64)
    for i, limit in enumerate((60, 45)):
        world.submit(submission(f"r{i}", [i] * (5 + i), limit, "base@w0", arrival=float(i)))
    state = world.workers["w0"].state
    step_to(state, 2)
    plan = state.plan(0.0)
    assert plan is not None
    assert state.repeat(plan) == 45 - 7  # of the second: tokens 7 .. 44, the last of which ends it
    assert state.jump(plan, 38, 0.0) == 38
    assert state.number == 2 + 38
    assert state.running == 1


def test_a_jump_ends_before_memory_runs_out() -> None:
    """Eleven pages of two layers, for two sequences that would need twenty."""
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=11 * 64 * 1024, chunk_size=64)
    for i in range(2):
        world.submit(submission(f"r{i}", [i] * 6, 40, "base@w0", arrival=float(i)))
    state = world.workers["w0"].state
    step_to(state, 2)
    plan = state.plan(0.0)
    assert plan is not None
    assert state.repeat(plan) == 20 - 6  # each has five pages, which hold positions 0 .. 19
    assert state.jump(plan, 14, 0.0) == 14
    assert state.counters["preemptions"] == 0
    assert jump_to(state, 200) > 20
    assert state.counters["preemptions"] > 0


def test_whoever_waits_for_memory_keeps_jumps_within_a_page() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=11 * 64 * 1024, chunk_size=64)
    for i in range(3):
        world.submit(submission(f"r{i}", [i] * 17, 21, "base@w0", arrival=float(i)))
    state = world.workers["w0"].state
    step_to(state, 2)
    plan = state.plan(0.0)
    assert plan is not None
    assert (state.running, state.waiting) == (2, 1)
    assert state.repeat(plan) <= 4


def test_without_a_prefix_cache_nothing_is_published_that_they_wait_for() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=14 * 64 * 1024, chunk_size=64, prefix_cache=False)
    for i in range(3):
        world.submit(submission(f"r{i}", [i] * 17, 33, "base@w0", arrival=float(i)))
    state = world.workers["w0"].state
    step_to(state, 2)
    plan = state.plan(0.0)
    assert plan is not None
    assert (state.running, state.waiting) == (2, 1)
    assert state.repeat(plan) > 4


def test_without_a_device_plans_are_the_same_but_for_their_table_edits() -> None:
    """Prompts that share their beginnings, preemptions, ends; the switch is a part of the state."""
    machines = [make_state(), make_state()]
    machines[1].without_device()
    drivers = [Driver(Tape(state), state) for state in machines]
    for driver in drivers:
        driver.submit(9)
    while drivers[0].turn() | drivers[1].turn():
        for one, other in zip(drivers[0].open, drivers[1].open, strict=True):
            assert replace(one, edits=[]) == other
        assert SweepState.restore(machines[1].snapshot()).digest() == machines[1].digest() != machines[0].digest()
    assert machines[0].counters == machines[1].counters
    assert machines[0].counters["preemptions"] > 0
