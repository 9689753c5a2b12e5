"""Walks with all parties at once: deploy, on demand, burst, drop, drain, scale, kill. Nothing leaks, nothing is claimed for
ever, and every load, addition and order ends."""

from __future__ import annotations

from collections import Counter

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.policies.control.world import ControlWorld

STEPS = 300
FEW, MANY = 60, 1000  # seeds of any run, and of a nightly one
PART = 50  # seeds of one nightly test
FOUND = (41260,)  # seeds of nightly runs in which a world did not come to rest


def play(seed: int) -> ControlWorld:
    """Return a world that has come to rest, with what has to hold of it checked."""
    world = ControlWorld(seed)
    try:
        world.start()
        for _ in range(STEPS):
            world.step()
        world.settle()
        at_rest(world)
    except Exception as error:
        error.add_note(f"again: ControlWorld({seed})")
        raise
    return world


def at_rest(world: ControlWorld) -> None:
    """Check that nothing is claimed for ever and nothing leaks."""
    state = world.state
    assert world.asked_to_add <= world.added.keys(), "an addition was never answered"
    assert not state.additions.replaces
    assert not state.overload.groups, "a group of dropped parameters never ends"
    assert not state.overload._of_order, "an answer of gateways is awaited for ever"
    assert (state.demand.coming, state.demand.leaving) == ("", ""), "a swap never ends"
    drained = {
        p.route.id for served in state.served.values() for p in served.planned for w in state.holdings.draining if p.is_on(w)
    }
    assert state.table.paused == drained, "a pause outlives its party"
    for name, worker in state.workers.items():
        residency = state.residency[name]
        assert worker.state == "ready" or not state.holdings.blocks, name
        assert (residency.loading, residency.asking) == (None, False), name
        claimed = {
            (one.application, depth) for one in state.holdings.claims_on(name) for depth in range(one.first, one.last)
        }
        held = {(holder, depth) for holder, depths in residency.resident.items() for depth in depths}
        assert held <= claimed, f"worker {name} holds what nobody claims"
        refused = {(holder, depth) for holder, depth in claimed if holder in residency.refused}
        assert claimed - refused == held - refused, f"worker {name} lacks what is claimed"


@claim("A cluster comes to rest after any mixture of deployments, bursts, drops, drains and deaths", of="faults")
@pytest.mark.parametrize("part", range(0, FEW, 10))
def test_a_world_of_all_parties_comes_to_rest(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, part + 10):
        seen.update(play(seed).seen)
    assert seen.keys() >= {"Load", "Unload", "Added", "SwitchRoutes", "AskUsage", "VacateWorker", "FinishRequests"}


@pytest.mark.parametrize("seed", FOUND)
def test_a_world_that_was_found_comes_to_rest(seed: int) -> None:
    play(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(0, MANY, PART))
def test_more_worlds_come_to_rest(part: int, request: pytest.FixtureRequest) -> None:
    first = request.config.getoption("--seed") + part
    for seed in range(first, first + PART):
        play(seed)
