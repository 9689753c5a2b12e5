"""Decoding rows of a pipeline leave in equal shares, one for each stage, and at most stages + 1 shares are away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .sweep_world import FakeWorker, World, chain, generate, pipeline, submission

ROWS = 12


def decoding(stages: int) -> tuple[World, FakeWorker]:
    """ROWS sequences at home on w0, all of which have tokens, none in flight; nothing is delivered from here on."""
    workers = [f"w{i}" for i in range(stages)]
    target = chain("base", layers=3)
    world = World(workers, [target], [pipeline(workers, target)], chunk_size=8, max_rows=ROWS, sweep_tokens=64)
    for i in range(ROWS):
        world.submit(submission(f"r{i}", [i, i + 1, i + 2], 60, f"base@{'+'.join(workers)}", arrival=float(i)))
    home = world.workers["w0"]
    while not all(world.emitted[f"r{i}"] for i in range(ROWS)):
        assert any(world._move(kind, what) for kind, what in world.moves())
    while home.state.parts.leases.microbatches or home.open:  # all come back, and none leaves
        others = [(kind, what) for kind, what in world.moves() if (kind, what) != ("plan", home)]
        assert any(world._move(kind, what) for kind, what in others)
    return world, home


def departures(world: World, home: FakeWorker) -> list[int]:
    """Rows of each plan that the home makes until it waits for somebody to come back."""
    found = []
    while world.start_plan(home):
        found.append(len(home.open[0][0].row))
        world.end_plan(home)
    return found


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_stage_gets_its_share(stages: int) -> None:
    world, home = decoding(stages)
    assert departures(world, home) == [ROWS // stages] * stages
    world.run(1)
    for i in range(ROWS):
        assert world.emitted[f"r{i}"] == generate("base", [i, i + 1, i + 2], 60, [])


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_at_most_one_more_than_there_are_stages_is_away(stages: int) -> None:
    """One row fits a sweep here, so that twelve microbatches could leave."""
    world, home = decoding(stages)
    home.state.parts.config = replace(home.state.config, sweep_tokens=1)
    assert departures(world, home) == [1] * (stages + 1)
    assert home.state.parts.leases.microbatches == stages + 1
    world.run(1)
    world.assert_quiet()
