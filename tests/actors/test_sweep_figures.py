"""What a worker tells of its sweeps: what they cost is learned for whoever asks, from a profile or without one."""

from __future__ import annotations

import pytest

from blockwright.actors.worker.sweep_figures import SweepFigures
from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.fit import REFIT
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import CostsLearned
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.sweep_world import World, chain, pipeline, replica, submission

IDLE = SweepState(SweepConfig(worker="w0", numerics="", budget=0))
PLAN = SweepPlan(1, row=[0, 1], start=[5, 9], count=[1, 1], sample=[0, 1])


def sweep(figures: SweepFigures, times: int) -> None:
    for _ in range(times):
        figures.swept(PLAN, SweepResult(1, [7, 7], seconds=0.02), IDLE)


def test_without_a_profile_nothing_is_learned_until_somebody_asks_and_it_has_seen_some_sweeps() -> None:
    figures = SweepFigures()
    sweep(figures, 2 * REFIT)
    assert "cost_error" not in figures.counters()
    assert figures.costs is None
    sweep(figures, REFIT - 1)
    assert figures.costs is None
    sweep(figures, 1)
    found = figures.costs
    assert found is not None
    assert cost(PLAN, found) == pytest.approx(0.02, rel=0.01)
    assert figures.counters()["cost_error"] == pytest.approx(0, abs=0.01)
    assert "cost_drift" not in figures.counters(), "there is no profile that they could drift from"


def test_a_profile_is_known_at_once() -> None:
    profile = Coefficients(base=0.01)
    figures = SweepFigures(profile)
    assert figures.costs is profile
    sweep(figures, 32)
    assert figures.counters()["cost_drift"] == pytest.approx(1.0)


def test_a_home_of_pipelines_gets_what_is_learned() -> None:
    """Without a profile too; and nothing twice."""
    target = chain("base")
    world = World(["w0", "w1"], [target], [pipeline(["w0", "w1"], target)])
    world.submit(submission("r0", [1, 2, 3], 9, "base@w0+w1"))
    home, figures = world.workers["w0"].state, SweepFigures()
    while not home.running:
        assert any(world._move(kind, what) for kind, what in world.moves())
    seen = [figures.swept(PLAN, SweepResult(1, [7, 7], seconds=0.02), home) for _ in range(REFIT + 1)]
    assert seen[:-2] == [[]] * (REFIT - 1)
    assert seen[-1] == [CostsLearned(figures.costs)]  # type: ignore[arg-type]
    home.apply(seen[-1][0], 0.0)
    assert figures.swept(PLAN, SweepResult(1, [7, 7], seconds=0.02), home) == []
    assert home.config.costs == figures.costs


def test_a_worker_that_drafts_gets_what_is_learned() -> None:
    """Otherwise every draft would seem to cost nothing, and the longest would be the best."""
    target = chain("base")
    world = World(["w0"], [target], [replica("w0", target)])
    home, figures = world.workers["w0"].state, SweepFigures()
    world.submit(submission("plain", [1, 2, 3], 9, "base@w0"))
    assert [figures.swept(PLAN, SweepResult(1, [7, 7], seconds=0.02), home) for _ in range(REFIT)] == [[]] * REFIT
    world.submit(submission("r0", [1, 2, 3], 9, "base@w0", drafts=DraftOptions(prompt=True)))
    seen = [figures.swept(PLAN, SweepResult(1, [7, 7], seconds=0.02), home) for _ in range(REFIT + 1)]
    assert seen[-1] == [CostsLearned(figures.costs)]  # type: ignore[arg-type]
