"""Counts of what passes a worker and of what it sends on; where a route crosses, both workers together tell all of it."""

from __future__ import annotations

from typing import Any

from blockwright.actors.worker.sweep_figures import TrafficFigures
from blockwright.policies.model.chain import Hop, Route
from blockwright.tests.policies.sweep_world import World, chain, replica, submission

BASE = chain("base", 2)
DEPTH = len(BASE.components)
WIDTH = BASE.components[1].width_in
ACROSS = Route("base@w0+w1", 1, "base", (Hop("w0", 0, 3), Hop("w1", 3, DEPTH)))
PROMPT, ANSWER = 9, 6


def counted(numerics: str, route: Route) -> dict[str, Any]:
    """Play a request on a route; return what each worker's heartbeat says."""
    world = World(["w0", "w1"], [BASE], [route], budget=64 << 16)
    figures = {name: TrafficFigures(numerics) for name in world.workers}
    end = world.end_plan

    def recorded(worker: Any) -> bool:
        if worker.open:
            plan, _ = worker.open[0]
            figures[worker.name].record(plan, worker.state.batch(plan.number), worker.state.parts.rows)
        return end(worker)

    world.end_plan = recorded  # type: ignore[method-assign]
    world.submit(submission("r", list(range(1, PROMPT + 1)), PROMPT + ANSWER, route.id))
    world.run()
    return {name: one.beat for name, one in figures.items()}


def test_a_route_that_crosses_is_counted_where_it_begins_and_where_it_is_sent() -> None:
    beats = counted("fp32", ACROSS)
    positions = PROMPT + ANSWER - 1  # the last token is not computed
    ((name, (sweeps, passed)),) = beats["w0"]["traffic"]["passages"].items()
    assert (name, passed) == ("base", positions)
    assert beats["w0"]["traffic"]["sent"] == [["base", 3, "w1", sweeps, positions, positions * WIDTH * 4]]
    assert beats["w1"] == {}, "a guest is counted by its home"


def test_a_whole_chain_passes_and_sends_nothing() -> None:
    beats = counted("native-avx2-bfloat16", replica("w1", BASE))
    assert beats["w0"] == {}
    assert beats["w1"]["traffic"]["passages"]["base"][1] == PROMPT + ANSWER - 1
    assert beats["w1"]["traffic"]["sent"] == []


def test_an_activation_of_a_shorter_type_has_fewer_bytes() -> None:
    (sent,) = counted("native-avx2-bfloat16", ACROSS)["w0"]["traffic"]["sent"]
    assert sent[-1] == sent[-2] * WIDTH * 2
