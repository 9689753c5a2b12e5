"""Tenants that differ by deltas share runs and the KV below the first; each row carries the number of its own deltas."""

from __future__ import annotations

import random
import sys

import pytest

from blockwright.policies.model.chain import Block, Chain
from blockwright.policies.model.lineage import lineages
from blockwright.policies.model.local_paths import LocalPaths
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.policies.sweep.local_routes import LocalRoutes
from blockwright.policies.sweep.state import SweepState

from ..sweep_world import World, chain, generate, pipeline, replica, submission, variant

BASE = chain("base")  # embedding, attention, mlp, attention, mlp, head
LOWER = variant(BASE, "lower", [1, 2, 3, 4])
UPPER = variant(BASE, "upper", [4])
CHAINS = [BASE, LOWER, UPPER]


def test_a_variant_is_its_base_and_its_delta() -> None:
    base, changed = BASE.components[1], LOWER.components[1]
    assert (changed.base, changed.shared, changed.kv) == (base.id, base.id, base.kv)
    assert len({base.id, changed.id, changed.delta, base.adapted(b"o" * 16, 1).id}) == 4
    assert base.adapted(changed.delta, 10) == changed
    assert (base.base, base.delta, base.shared) == (b"", b"", base.id)


def test_variants_share_runs_and_the_kv_below_their_first_delta() -> None:
    local = LocalPaths("w0", "numerics").cut(CHAINS, [replica("w0", c) for c in CHAINS])
    base, lower, upper = (local[f"{name}@w0"] for name in ("base", "lower", "upper"))
    assert base.runs == lower.runs == upper.runs
    assert base.touched == (False, False)
    assert lower.touched == upper.touched == (True, False)
    assert [depth for depth, _ in lower.deltas] == [1, 2, 3, 4]
    assert base.spans == upper.spans, "attention differs nowhere: all KV is shared"
    assert not {s.lineage for s in base.spans} & {s.lineage for s in lower.spans}
    lines = [lineages(c.components, "n") for c in (BASE, UPPER)]
    assert [a == b for a, b in zip(*lines, strict=True)] == [True] * 4 + [False] * 2


def test_routes_with_equal_deltas_have_one_number_while_they_are_planned() -> None:
    twin = Chain("twin", UPPER.blocks, UPPER.max_length)
    world = World(["w0"], [BASE, UPPER, twin], [replica("w0", c) for c in (BASE, UPPER, twin)])
    routes = world.workers["w0"].state.parts.routes
    numbers = {local.route.application: local.delta for local in routes.planned()}
    assert numbers == {"base": 0, "upper": 1, "twin": 1}
    assert not routes.plain
    again = LocalRoutes.restore(routes.snapshot())
    again.check()
    assert again.snapshot() == routes.snapshot() == routes.fork().snapshot()
    world.serve([BASE, twin], [replica("w0", BASE), replica("w0", twin)])
    assert {local.delta for local in routes.planned()} == {0, 1}
    world.serve([BASE], [replica("w0", BASE)])
    assert routes.plain
    world.serve([BASE, UPPER], [replica("w0", BASE), replica("w0", UPPER)])
    assert {local.delta for local in routes.planned()} == {0, 2}, "a plan under way may still name the first"


def test_a_model_without_deltas_has_none_in_its_steps() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)])
    worker = world.workers["w0"]
    world.submit(submission("r", [1, 2, 3], 6, "base@w0"))
    assert worker.state.parts.routes.plain
    plan = worker.state.plan(0.0)
    assert plan is not None
    assert [step.delta for step in plan.steps] == [[], []]


def test_rows_of_a_step_stand_in_groups_of_equal_deltas() -> None:
    world = World(["w0"], CHAINS, [replica("w0", c) for c in CHAINS])
    worker = world.workers["w0"]
    for i in range(9):
        world.submit(submission(f"r{i}", [1, 2, 3, i], 6, f"{CHAINS[i % 3].application}@w0", arrival=float(i)))
    plan = worker.state.plan(0.0)
    assert plan is not None
    body, head = plan.steps
    assert body.delta == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert head.delta == []


def test_equal_deltas_over_different_bases_are_met_in_the_runs_of_both() -> None:
    """One adapter over a foundation and over a fine-tune of it: one number, two lists of runs, one sweep."""
    pair = []
    for base in (BASE, chain("tuned", own_from=0)):
        parts = [c.adapted(b"a" * 15 + bytes([d]), 10) if d in (1, 2) else c for d, c in enumerate(base.components)]
        pair.append(Chain(f"{base.application}+a", (Block(tuple(parts)),), base.max_length))
    world = World(["w0"], pair, [replica("w0", c) for c in pair])
    worker = world.workers["w0"]
    for i, target in enumerate(pair):
        world.submit(submission(f"r{i}", [1, 2, 3], 6, f"{target.application}@w0", arrival=float(i)))
    plan = worker.state.plan(0.0)
    assert plan is not None
    assert [step.delta for step in plan.steps if step.delta] == [[1], [1]]


def test_the_rows_of_a_run_are_sorted_once_however_many_applications_share_it() -> None:
    tenants = [variant(BASE, f"t{i:02}", [4]) for i in range(20)]
    world = World(["w0"], tenants, [replica("w0", c) for c in tenants])
    state, sorted_times = world.workers["w0"].state, 0
    for i, target in enumerate(tenants):
        world.submit(submission(f"r{i}", [1, 2, i], 6, f"{target.application}@w0", arrival=float(-i)))

    def note(_: object, event: str, called: object) -> None:
        nonlocal sorted_times
        sorted_times += event == "c_call" and called is sorted

    sys.setprofile(note)
    try:
        plan = state.plan(0.0)
    finally:
        sys.setprofile(None)
    assert plan is not None
    assert [step.batch for step in plan.steps] == [list(range(20))] * 2
    assert sorted_times < 10


@pytest.mark.parametrize("seed", range(20))
def test_tenants_never_read_what_another_delta_made(seed: int) -> None:
    """The fake device checks every position read against the lineage that it needs, through preemption and cache hits."""
    chance = random.Random(seed)
    routes = [replica("w0", c) for c in CHAINS] + [pipeline(["w0", "w1"], c) for c in CHAINS]
    world = World(["w0", "w1"], CHAINS, routes, chunk_size=8, sweep_tokens=32, max_rows=6, budget=3 << 20)
    stem = [chance.randrange(40) for _ in range(14)]
    prompts = [[*stem[: chance.randint(1, 14)], chance.randrange(40)] for _ in range(24)]
    asked = [chance.choice(routes) for _ in prompts]
    for i, (prompt, route) in enumerate(zip(prompts, asked, strict=True)):
        world.submit(submission(f"r{i}", prompt, len(prompt) + 8, route.id, arrival=float(i)))
    world.run(seed)
    for i, (prompt, route) in enumerate(zip(prompts, asked, strict=True)):
        assert world.emitted[f"r{i}"] == generate(route.application, prompt, len(prompt) + 8, [])
    world.assert_quiet()


def closed_loop(chains: list[Chain]) -> list[tuple[list[int], list[int]]]:
    """What the rows of each sweep are, of eight clients who send their next request when they have an answer."""
    chance, routes = random.Random(3), [replica("w0", c) for c in chains]
    numbers = {"budget": 8 << 20, "page_size": 4, "sweep_tokens": 40, "max_rows": 8, "memory_chunk": 4096, "granule": 1}
    state = SweepState(SweepConfig(worker="w0", numerics="fake", slot_unit=1024, **numbers))  # type: ignore[arg-type]
    state.apply(RoutesChanged(1, chains, routes, routes), 0.0)
    left = 60
    now = 0.0
    found = list[tuple[list[int], list[int]]]()
    free = 8
    while True:
        for _ in range(min(free, left)):
            route, prompt = chance.choice(routes), [chance.randrange(1 << 20) for _ in range(chance.randint(3, 20))]
            fields = {"tenant": route.application, "arrival": now}
            state.apply(submission(f"r{left}", prompt, len(prompt) + chance.randint(2, 9), route.id, **fields), now)
            left -= 1
        if (plan := state.plan(now)) is None:
            return found
        found.append((plan.start, plan.count))
        now += 1.0
        state.commit(plan, SweepResult(plan.number, [1] * len(plan.sample)), now)
        free = sum(isinstance(effect, TokensEmitted) and bool(effect.finish) for effect in state.take_effects().news)


def test_tenants_take_the_same_sweeps_whatever_they_share() -> None:
    """Sharing makes a sweep cheaper; the order of rows does not depend on it."""
    full = chain("full", own_from=3)
    apart = [chain(c.application, own_from=0) for c in (BASE, LOWER, UPPER, full)]
    sweeps = closed_loop([BASE, LOWER, UPPER, full])
    assert len(sweeps) > 40
    assert closed_loop(apart) == sweeps
