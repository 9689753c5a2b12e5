"""A sequence whose time is over leaves at the next plan, wherever it is, and takes nothing with it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.sweep.events import LeaseReturned
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base")


@claim("An expired request leaves at the next plan", of="serving")
def test_it_leaves_at_the_plan_that_comes_after_its_deadline() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], max_rows=1)
    worker = world.workers["w0"]
    for name, timeout in (("runs", 5.0), ("waits", 7.0), ("stays", 0.0)):
        world.submit(submission(name, [1, 2, 3], 40, "base@w0", arrival=float(len(world.emitted)), timeout=timeout))
    assert worker.state.next_deadline == 5.0
    plan = worker.state.plan(4.9)
    assert plan is not None
    assert plan.row
    world.collect(worker)
    assert not world.returned
    worker.state.plan(5.0)  # the open plan still names its row, which is the only one
    world.collect(worker)
    assert [(back.request, back.reason) for back in world.returned] == [("runs", "deadline")]
    assert worker.state.next_deadline == 7.0
    assert worker.state.plan(7.5) is None
    world.collect(worker)
    assert [back.request for back in world.returned] == ["runs", "waits"]
    assert worker.state.next_deadline == float("inf")
    assert worker.state.counters["expired"] == 2
    worker.state.check()


def test_one_that_waits_for_a_lease_gives_it_back() -> None:
    world = World(["w0", "w1"], [BASE], [pipeline(["w0", "w1"], BASE)])
    world.submit(submission("r0", [1, 2, 3], 9, "base@w0+w1", timeout=5.0))
    state = world.workers["w0"].state
    assert state.plan(0.0) is None
    assert state.plan(5.0) is None
    world.collect(world.workers["w0"])
    assert [back.reason for back in world.returned] == ["deadline"]
    assert isinstance(world.wire["w0", "w1"][-1], LeaseReturned)
    world.run(0)
    world.assert_quiet()


@pytest.mark.parametrize("requests", [6])
@given(seed=st.integers(0, 10_000))
@examples(40)
def test_whoever_expires_at_whatever_time_others_get_their_tokens(requests: int, seed: int) -> None:
    routes = [pipeline(["w0", "w1"], BASE), replica("w0", BASE)]
    world = World(["w0", "w1"], [BASE], routes, budget=40 * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=64)
    chance, expected = random.Random(seed), {}
    for i in range(requests):
        prompt = [chance.randrange(3) for _ in range(chance.randint(1, 20))]
        expected[f"r{i}"] = generate("base", prompt, len(prompt) + 12, [])
        timeout = chance.choice([0.0, 1.0])
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, routes[i % 2].id, arrival=float(i), timeout=timeout))
    for _ in range(chance.randrange(80)):
        world._move(*chance.choice(world.moves()))
    for worker in world.workers.values():
        worker.state.apply(world.update, 2.0)
        while len(worker.open) == 2:
            world.end_plan(worker)
        plan = worker.state.plan(2.0)
        if plan is not None:
            worker.open.append((plan, worker.device.execute(plan, worker.state.batch(plan.number))))
        world.collect(worker)
        worker.state.check()
    world.run(seed)
    expired = {back.request for back in world.returned}
    assert all(back.reason == "deadline" for back in world.returned)
    for name, tokens in expected.items():
        if name not in expired:
            assert world.emitted[name] == tokens
        else:
            assert world.emitted[name] == tokens[: len(world.emitted[name])]
    world.assert_quiet()
