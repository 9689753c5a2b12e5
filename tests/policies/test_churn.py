"""Applications come and go by the hundred: what a worker keeps of them is bounded, and nobody else notices."""

from __future__ import annotations

from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.model.chain import Chain
from blockwright.policies.sweep.events import ComponentsReleased, ComponentsWanted

from .sweep_world import World, chain, replica, submission, variant

BASE = chain("base", 3)


def round_of(world: World, name: str, number: int) -> None:
    """An application comes, answers beside the base, and goes with its parameters and what it cached."""
    target: Chain = chain(name, 3, own_from=1 + number % 6) if number % 2 else variant(BASE, name, [1 + number % 5])
    state, own = world.workers["w0"].state, [c for c in target.components if c not in BASE.components]
    world.serve([BASE, target], [replica("w0", BASE), replica("w0", target)])
    ids = [part.delta or part.id for part in own]
    state.apply(ComponentsWanted(number, name, [WantedComponent(id, [PackedTensor(id, 100)]) for id in ids]), 0.0)
    for model in ("base", name):
        prompt = [number % 7] * 9
        world.submit(submission(f"{model}{number}", prompt, 14, f"{model}@w0", tenant=model, arrival=float(number)))
    world.run(number)
    world.serve([BASE], [replica("w0", BASE)])
    state.apply(ComponentsReleased(ids, name), 0.0)
    world.run(number)


def test_three_hundred_applications_leave_nothing_behind() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=24 * 64 * 1024, tenant_kv_share={"*": 0.8})
    state, sizes = world.workers["w0"].state, []
    for number in range(300):
        round_of(world, f"app{number:03}", number)
        sizes.append(len(repr(state.snapshot())))
    assert len(world.finished) == 600
    assert max(sizes[40:]) < 1.1 * max(sizes[20:40])
    assert state.parts.routes.plain, "no delta is left"
    assert len(state.parts.queue.share.served) < 8, "but for those that were given more than others"
    assert len(state.parts.memory.pages.accounts.names) < 8
    assert state.fork().snapshot() == state.snapshot()
    world.assert_quiet()
