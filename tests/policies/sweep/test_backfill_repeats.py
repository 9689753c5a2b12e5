"""A jump leads to the very state that stepping leads to, also with offline rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.plan.sweep_plan import SweepResult

from .offline_world import COSTS, offline, online, world


@pytest.mark.parametrize("alone", [None, 0.0, 0.05, 3600.0], ids=["unknown", "short", "sweep", "long"])
def test_jumping_equals_stepping_with_offline_rows(alone: float | None) -> None:
    """Beside online rows and without them, over page borders, ends, and where those that ride cost more and more."""
    skipped = 0
    for seed in range(12):
        chance = random.Random(f"{seed} {alone}")
        costs = (
            None if alone is None else replace(COSTS, context=chance.choice([1e-6, 1e-5]), beyond=chance.choice([0.0, 2e-4]))
        )
        more = {"offline_sweep": alone or 0.0, "offline_delay": chance.choice([0.0, 0.03, 0.2]), "costs": costs}
        state = world(chance.choice([20, 40, 100]), **more).workers["w0"].state
        for i in range(chance.randint(1, 5)):
            side = chance.choice(["left", "right"])
            state.apply(offline(f"o{i}", [i] * chance.randint(1, 12), chance.randint(2, 60), float(i), side), 0.0)
        for i in range(chance.randint(0, 2)):
            state.apply(online(f"r{i}", [60 + i] * chance.randint(1, 12), chance.randint(2, 60)), 0.0)
        jumping = state.fork()
        while (plan := jumping.plan(0.0)) is not None:
            before, sweeps = jumping.number, jumping.repeat(plan)
            jumping.jump(plan, sweeps, 0.0)
            jumping.check()
            skipped += sweeps - 1
            while state.number < jumping.number:
                stepped = state.plan(0.0)
                assert stepped is not None
                state.commit(stepped, SweepResult(stepped.number, [0] * len(stepped.sample)), 0.0)
            assert state.digest() == jumping.digest(), f"from sweep {before} to {jumping.number}"
        assert state.plan(0.0) is None
    assert skipped > 80, "hardly anything was jumped over"
