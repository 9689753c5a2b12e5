"""Two states that would go on differently have different digests, and a state that came about alike the same one."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.extents import Extents
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.memory.residence import Residence
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.sweep.digest import digest
from blockwright.policies.sweep.rows import Rows
from blockwright.policies.sweep.state import SweepState

from ..sweep_world import World, chain, pipeline, replica, submission


def busy(moves: int = 60) -> World:
    """Two workers in the middle of everything: pipelines, replicas, guests, flights, parked and waiting sequences."""
    target = chain("base")
    routes = [pipeline(["w0", "w1"], target), replica("w0", target)]
    world = World(["w0", "w1"], [target], routes, budget=40 * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=64)
    for worker in world.workers.values():
        worker.state.parameters.load(b"component", "base", 100_000)
    chance = random.Random(1)
    for i in range(10):
        prompt = list(range(12)) if i % 3 else [chance.randrange(40) for _ in range(chance.randint(1, 20))]
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, routes[i % 2].id, arrival=float(i)))
    for _ in range(moves):
        kind, what = chance.choice(world.moves())
        world._move(kind, what)
    return world


def test_the_same_events_lead_to_the_same_digest() -> None:
    first, second = (busy().workers["w0"].state for _ in range(2))
    assert first.digest() == second.digest() == first.fork().digest()


def test_the_world_is_busy_enough_for_the_tests_below() -> None:
    """Each part of a state has something in it at some time."""
    seen: set[str] = set()
    for moves in range(0, 160, 4):
        for worker in busy(moves).workers.values():
            seen |= {name for name, value in vars(worker.state).items() if value}
    assert set(vars(busy().workers["w0"].state)) - seen <= {"effects", "grounded", "leaving"}


@pytest.mark.parametrize("name", [n for n in vars(busy(0).workers["w0"].state) if n not in ("config", "effects")])
def test_any_change_of_any_part_shows(name: str) -> None:
    """Whatever stands in an attribute of the state, deep down too."""
    for moves in (20, 60, 120):
        for worker in busy(moves).workers.values():
            changes = 0
            while (other := changed(worker.state, name, changes)) is not None:
                assert other.digest() != worker.state.digest(), f"{name}, place {changes}"
                changes += 1
            assert changes, name


def changed(state: SweepState, name: str, place: int) -> SweepState | None:
    """A copy of which one plain value in ``name`` is another; None when there are not so many."""
    copy = deepcopy(state)
    attribute = getattr(copy, name)
    if isinstance(attribute, int):
        if place:
            return None
        setattr(copy, name, attribute + 1)
        return copy
    containers = list(_containers(attribute))
    if place == len(containers):
        return None
    container = containers[place]
    if isinstance(container, dict):
        container[b"new" if not container else next(iter(container))] = "something else"
    else:
        container.append(12345)
    return copy


def _containers(value: object) -> list[list[object] | dict[object, object]]:
    """All lists and dicts in what belongs to the state alone; a few of a kind are enough."""
    match value:
        case list():
            return [value, *(c for entry in value[:3] for c in _containers(entry))]
        case dict():
            return [value, *(c for entry in list(value.values())[:3] for c in _containers(entry))]
    owned = vars(value) if isinstance(value, Rows | PageTable | ChunkPool | Residence | Extents | SlotAllocator) else {}
    return [c for entry in owned.values() for c in _containers(entry)]


def test_the_order_of_dicts_counts_and_that_of_sets_does_not() -> None:
    assert digest({1: 2, 3: 4}) != digest({3: 4, 1: 2})
    assert digest({"x", "y", "z"}) == digest({"z", "y", "x"})
    assert digest([1, [2]]) != digest([1, 2])
