"""KV slots move together when a load finds no room: nothing that runs, waits, crosses workers or is cached notices."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.sweep.events import ComponentsReleased, ComponentsWanted
from blockwright.tests.parts import spans

from .fake_device import CHUNK
from .sweep_world import FakeWorker, World, chain, generate, pipeline, replica, submission

BASE, TUNED = chain("base"), chain("tuned", own_from=3)
SLOT = CHUNK // 16


def press(world: World, worker: FakeWorker, number: int, share: float) -> None:
    """A load of so much of what is free or could be, which is released again later."""
    memory = worker.state.parts.memory
    nbytes = int(share * (memory.free_bytes + memory.pages.spare * CHUNK))
    name = f"load{number}"
    wanted = [WantedComponent(name.encode(), [PackedTensor(name.encode(), max(1, nbytes))])]
    worker.state.apply(ComponentsWanted(number, name, wanted), world.now)
    world.collect(worker)
    worker.state.check()


def release(world: World, worker: FakeWorker) -> None:
    for id in worker.state.parts.memory.residence.components:
        worker.state.apply(ComponentsReleased([id], id.decode()), world.now)
    world.collect(worker)


def play(seed: int) -> Counter[str]:
    random = Random(seed)
    workers = ["w0", "w1"]
    routes = [replica("w0", BASE), replica("w1", TUNED), pipeline(workers, BASE)]
    world = World(
        workers, [BASE, TUNED], routes, budget=random.choice([6, 9, 12]) * CHUNK, chunk_size=8, max_rows=12,
        sweep_tokens=48, slot_unit=SLOT,
    )  # fmt: skip
    expected: dict[str, list[int]] = {}
    for number in range(24):
        route = random.choice(routes)
        prompt = [random.randrange(3) for _ in range(random.randint(1, 14))]
        name, limit = f"r{number}", len(prompt) + random.randint(1, 24)
        expected[name] = generate(route.application, prompt, limit, [])
        world.submit(submission(name, prompt, limit, route.id, arrival=float(number)))
    for number in range(400):
        moves = world.moves()
        random.shuffle(moves)
        if not any(world._move(kind, what) for kind, what in moves):
            break
        if number % 5 == 0:
            press(world, world.workers[random.choice(workers)], number, random.choice((0.5, 0.9, 1.0)))
        if number % 35 == 0:
            name = random.choice(list(expected))
            world.cancel(name)
            del expected[name]
        if number % 15 == 0:
            for worker in world.workers.values():
                release(world, worker)
    for worker in world.workers.values():
        release(world, worker)
    world.run(seed)
    assert {name: world.emitted[name] for name in expected} == expected
    world.assert_quiet()
    return sum((Counter(w.state.counters) for w in world.workers.values()), Counter())


@pytest.mark.parametrize("span", spans(1, 30, 10), ids=str)
def test_tokens_are_the_same_however_often_slots_move(span: range) -> None:
    counters: Counter[str] = Counter()
    for seed in span:
        counters += play(seed)
    assert counters["moved_slots"] > 15 * len(span), counters


@pytest.mark.parametrize("received", [False, True])
def test_a_load_finds_room_unless_pages_are_on_their_way_in(received: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(
        ["w0"], [BASE], [replica("w0", BASE)], budget=6 * CHUNK, max_rows=40, sweep_tokens=256, slot_unit=SLOT,
        prefix_cache=False,
    )  # fmt: skip
    worker = world.workers["w0"]
    state, memory = worker.state, worker.state.parts.memory
    for number in range(24):
        world.submit(submission(f"r{number}", [number] * 6, 16, "base@w0", arrival=float(number)))
    while min(len(tokens) for tokens in world.emitted.values()) < 3:
        assert world.start_plan(worker)
        world.end_plan(worker)
    for number in range(24):
        if number % 3:
            world.cancel(f"r{number}")
    assert memory.pages.spare > 0
    if received:
        monkeypatch.setattr(type(state.parts.page_transfers), "receiving", property(lambda self: True))
    press(world, worker, 2, 1.0)
    assert (b"load2" in memory.residence.components) != received
    assert bool(state.counters["moved_slots"]) != received
    monkeypatch.undo()
    world.run(0)
    for number in range(0, 24, 3):
        assert world.emitted[f"r{number}"] == generate("base", [number] * 6, 16, [])
