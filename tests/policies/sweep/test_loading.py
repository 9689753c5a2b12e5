"""Parameters come and go in the sweep machine: their memory, and that of the KV that they made."""

from __future__ import annotations

from blockwright.policies.memory.packed_tensor import PackedTensor, TensorPlace, WantedComponent
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.admission import CROWDED, REFUSED
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import (
    ComponentGone,
    ComponentsPlaced,
    ComponentsRefused,
    ComponentsReleased,
    ComponentsWanted,
    Event,
    GivenBack,
)
from blockwright.policies.sweep.state import SweepState

from ..sweep_world import World, chain, replica, submission

BASE = chain("base")


def test_unloading_gives_memory_back_and_pages_go_with_the_last_of_a_models_parameters() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)])
    state = world.workers["w0"].state
    attention = BASE.components[1].id
    rest = BASE.components[2].id
    memory = state.parts.memory
    tensors = [PackedTensor(b"norm", 100), PackedTensor(b"q", 200_000)]
    state.apply(ComponentsWanted(1, "base", [WantedComponent(attention, tensors)]), 0.0)
    assert not state.take_effects()  # its memory is not mapped yet
    plan = state.plan(0.0)
    assert plan is not None
    assert [len(edit.chunks) for edit in plan.memory] == [4]
    assert state.take_effects().orders == [
        ComponentsPlaced(1, [attention], [[TensorPlace(0, True), TensorPlace(128, True)]])
    ]
    state.commit(plan, SweepResult(plan.number), 0.0)
    state.apply(ComponentsWanted(2, "base", [WantedComponent(rest, [PackedTensor(b"up", 100)])]), 0.0)  # in the same chunks
    state.take_effects()
    free = memory.free_bytes
    world.submit(submission("r0", [1] * 21, 33, "base@w0"))
    world.run(0)
    assert memory.pages.cached > 0
    state.apply(ComponentsReleased([attention], "somebody else"), 0.0)
    assert sorted(memory.residence.components) == sorted([attention, rest])
    state.apply(ComponentsReleased([attention], "base"), 0.0)
    assert state.take_effects().orders == [ComponentGone(attention, [b"norm", b"q"])]
    state.check()
    assert memory.pages.cached > 0, "a part of the model is here: the rest may come back"
    gone: list[Event] = [
        RoutesChanged(2, [], [], []),
        ComponentsReleased([rest], "base"),
        ComponentsReleased([rest], "base"),
    ]
    for copy, event in zip((SweepState.restore(state.snapshot()), state.fork(), state), gone, strict=True):
        copy.apply(event, 0.0)
        copy.check()
        assert copy.parts.memory.pages.cached == 0
    assert memory.free_bytes == free + 4 * state.config.memory_chunk
    assert memory.residence.components == []


def test_a_load_takes_nothing_that_a_sequence_may_still_need() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=12 * 64 * 1024, chunk_size=64, sweep_tokens=64)
    state = world.workers["w0"].state
    world.submit(submission("long", [1] * 8, 8 + 16, "base@w0"))
    world.start_plan(world.workers["w0"])
    world.end_plan(world.workers["w0"])
    state.take_effects()
    free = state.parts.memory.free_bytes
    wanted = [WantedComponent(b"new", [PackedTensor(b"t", free)])]
    state.apply(ComponentsWanted(1, "new", wanted), 0.0)
    (refused,) = state.take_effects().orders
    assert isinstance(refused, ComponentsRefused)
    assert not refused.shortage.never
    wanted = [WantedComponent(b"new", [PackedTensor(b"t", free - refused.shortage.lacking)])]
    state.apply(ComponentsWanted(2, "new", wanted), 0.0)
    world.run(0)
    assert len(world.emitted["long"]) == 16, "it reaches its limit beside what was loaded"


def test_a_sequence_that_only_other_parameters_leave_no_room_for_is_given_back_until_they_are_gone() -> None:
    for on_demand in (True, False):
        world = World(["w0"], [BASE], [replica("w0", BASE)], budget=12 * 64 * 1024, on_demand=on_demand)
        state = world.workers["w0"].state
        (chunk, page), spans = (64 * 1024, state.config.page_size), state.parts.routes.all_in_force()[0].spans
        for number, holder in enumerate(("base", "other")):
            wanted = [WantedComponent(holder.encode(), [PackedTensor(holder.encode(), 4 * chunk)])]
            state.apply(ComponentsWanted(number, holder, wanted), 0.0)
        now, ever = (state.parts.memory.pages_of(spans, "", alone) * page for alone in ("", "base"))
        assert now == ever // 2 > 0
        assert state.parts.memory.left_alone() == {"base": 8 * chunk, "other": 8 * chunk}
        state.take_effects()
        lengths = {"short": now, "crowded": now + 1, "just": ever, "long": ever + 1}
        for name, length in lengths.items():
            state.apply(submission(name, [1] * 8, length, "base@w0"), 0.0)
        back = {e.request: e.reason for e in state.take_effects().news if isinstance(e, GivenBack)}
        assert back.keys() == lengths.keys() - {"short"}
        assert [name for name, reason in back.items() if reason.startswith(CROWDED)] == ["crowded", "just"][: 2 * on_demand]
        assert f"{ever + 1} tokens and a worker has memory for {ever if on_demand else now};" in back["long"]
        assert back["long"].startswith(REFUSED)
        assert state.counters["refused"] == (1 if on_demand else 3)
