"""Routes that change and workers that die under load: whatever happens in whatever order, every sequence gets its tokens."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.model.chain import Route
from blockwright.policies.plan.sweep_plan import Arrival, SweepResult
from blockwright.policies.sweep.events import Effects, LeaseGranted, LeaseReturned, PeerLost
from blockwright.tests.parts import examples

from .fake_device import CHUNK
from .sweep_world import World, chain, generate, pipeline, replica, submission

WORKERS = ["w0", "w1", "w2"]
BASE = chain("base", layers=3)
TUNED = chain("tuned", layers=3, own_from=4)


class Gate:
    """Sends sequences again that were given back or lost a worker, as a gateway does, on any route in force."""

    def __init__(self, world: World, seed: int, count: int, new: int = 10) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.prompts: dict[str, tuple[str, list[int]]] = {}
        self.attempts: dict[str, int] = {}
        self.on: dict[str, Route] = {}
        self.new, self.seen = new, 0
        for i in range(count):
            own = [self.chance.randrange(40) for _ in range(self.chance.randint(1, 8))]
            prompt = [i % 2] * self.chance.randint(0, 12) + own
            self.prompts[f"r{i}"] = (self.chance.choice(["base", "tuned"]), prompt)
            self.send(f"r{i}")

    def send(self, request: str) -> None:
        application, prompt = self.prompts[request]
        up = self.world.workers
        whole = [r for r in self.world.update.routes if r.application == application and all(h.worker in up for h in r.hops)]
        self.on.pop(request, None)
        if request in self.world.finished or not whole:
            return
        route = self.on[request] = self.chance.choice(whole)
        self.attempts[request] = attempt = self.attempts.get(request, 0) + 1
        tokens = prompt + self.world.emitted.get(request, [])
        more = {"attempt": attempt, "prompt_length": len(prompt)}
        self.world.submit(submission(request, tokens, len(prompt) + self.new, route.id, arrival=float(request[1:]), **more))

    def look(self) -> None:
        """Take note of what was given back."""
        while self.seen < len(self.world.returned):
            back = self.world.returned[self.seen]
            self.seen += 1
            if back.attempt == self.attempts[back.request]:
                self.on.pop(back.request, None)
        for request in self.prompts:
            if request not in self.on:
                self.send(request)

    def kill(self, name: str) -> None:
        self.world.kill(name)
        for request, route in list(self.on.items()):
            if any(hop.worker == name for hop in route.hops) and request not in self.world.finished:
                self.world.cancel(request)
                self.on.pop(request, None)

    def moves(self, count: int) -> None:
        for _ in range(count):
            self.world._move(*self.chance.choice(self.world.moves()))
            self.look()

    def end(self, seed: int) -> None:
        """Everything ends, each with its own tokens, and nothing is left behind."""
        for _ in range(200):
            self.world.run(seed)
            if set(self.world.finished) == set(self.prompts):
                break
            self.look()
        for request, (application, prompt) in self.prompts.items():
            assert self.world.emitted[request] == generate(application, prompt, len(prompt) + self.new, []), request
            assert request in self.world.finished
        self.world.assert_quiet()


def routes() -> list[Route]:
    groups = [["w0"], ["w2"], ["w0", "w1"], ["w0", "w1", "w2"]]
    return [pipeline(g, c) if len(g) > 1 else replica(g[0], c) for g in groups for c in (BASE, TUNED)]


@given(seed=st.integers(0, 10_000), moves=st.integers(0, 60), chunks=st.sampled_from((16, 40)))
@examples(80)
def test_routes_change_under_load(seed: int, moves: int, chunks: int) -> None:
    world = World(WORKERS, [BASE, TUNED], routes(), budget=chunks * CHUNK, chunk_size=8, max_rows=5, sweep_tokens=32)
    gate, chance = Gate(world, seed, 12), random.Random(seed)
    for _ in range(5):
        gate.moves(moves)
        world.publish([r for r in routes() if chance.random() < 0.6])
    gate.moves(moves)
    world.publish(routes())
    gate.end(seed)


@given(seed=st.integers(0, 10_000), moves=st.integers(0, 60), chunks=st.sampled_from((16, 40)))
@examples(80)
def test_workers_die_and_return_under_load(seed: int, moves: int, chunks: int) -> None:
    world = World(WORKERS, [BASE, TUNED], routes(), budget=chunks * CHUNK, chunk_size=8, max_rows=5, sweep_tokens=32)
    gate, chance = Gate(world, seed, 12), random.Random(seed)
    for _ in range(4):
        gate.moves(moves)
        victim = chance.choice(WORKERS)
        gate.kill(victim)
        gate.moves(moves)
        world.start(victim)
    gate.end(seed)


def two() -> tuple[World, Route]:
    route = pipeline(["w0", "w1"], BASE)
    return World(["w0", "w1"], [BASE], [route], chunk_size=8, max_rows=4), route


def until_granted(world: World) -> None:
    """The home has asked, the host has granted, and the first flight is on its way."""
    home, host = world.workers["w0"], world.workers["w1"]
    world.start_plan(home)
    world.deliver(("w0", "w1"))
    world.start_plan(host)
    world.end_plan(host)
    world.deliver(("w1", "w0"))
    world.start_plan(home)
    world.end_plan(home)


def test_a_host_that_drops_a_guest_says_so() -> None:
    """The route went and came back; the home knew before it asked, the host only after it had granted."""
    world, route = two()
    for update in ([], [route]):
        world.publish(update)
        world.deliver(("head", "w0"))
    world.submit(submission("r0", [1, 2, 3], 8, route.id))
    until_granted(world)
    world.run(0)
    assert [g.reason for g in world.returned] == ["route"]
    world.assert_quiet()


def test_a_grant_that_nobody_waits_for_is_returned() -> None:
    """It was asked for by an earlier life of the home, which the host could not know."""
    world, _ = two()
    state = world.workers["w0"].state
    state.apply(LeaseGranted("w1", 77, 0), 0.0)
    assert state.take_effects() == Effects(messages={"w1": [LeaseReturned("w0", 77)]})


def test_flights_of_a_dead_home_are_not_computed_and_the_device_forgets_them() -> None:
    world, route = two()
    world.submit(submission("r0", [1, 2, 3], 8, route.id))
    until_granted(world)
    world.deliver(("w0", "w1"))
    world.kill("w0")
    plan = world.workers["w1"].state.plan(0.0)
    assert plan is not None
    assert plan.row == []
    assert plan.arrivals == [Arrival(1, [])]
    world.workers["w1"].state.commit(plan, SweepResult(plan.number), 0.0)
    world.assert_quiet()


def test_rows_of_a_dead_home_are_not_reported_to_its_next_life() -> None:
    world, route = two()
    world.submit(submission("r0", [1, 2, 3], 8, route.id))
    until_granted(world)
    world.deliver(("w0", "w1"))
    world.start_plan(world.workers["w1"])
    world.kill("w0")
    world.end_plan(world.workers["w1"])
    assert not any(world.wire.values())
    world.assert_quiet()


def test_sequences_of_a_dead_gateway_end() -> None:
    world, route = two()
    for i, gateway in enumerate(["g1/gateway", "head/gateway"]):
        world.submit(submission(f"r{i}", [1, 2, i], 8, route.id, gateway=gateway))
    world.workers["w0"].state.apply(PeerLost("g1"), 0.0)
    world.run(0)
    assert set(world.finished) == {"r1"}
    assert world.returned == []
    world.assert_quiet()
