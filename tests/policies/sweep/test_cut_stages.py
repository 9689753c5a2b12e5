"""Two stages of a pipeline that lose each other while the home reaches both: what ran there goes back to the home."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.sweep.events import PeerLost
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.policies.sweep_world import World, chain, generate, pipeline, submission

STAGES = ["w0", "w1", "w2", "w3"]
REQUESTS = [f"r{number}" for number in range(4)]
SEEDS, PARTS = 400, 20


@claim("Sequences over two stages of a pipeline that lost each other go back to their home, which reaches both", of="faults")
@pytest.mark.parametrize("part", parts(PARTS, 2))
def test_the_home_hears_of_a_cut_between_two_others(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        chance, own = random.Random(seed), chain("a", 4)
        world = World(STAGES, [own], [pipeline(STAGES, own)], budget=64 << 20)
        route = f"a@{'+'.join(STAGES)}"
        for number, request in enumerate(REQUESTS):
            world.submit(submission(request, [1, 2, 3 + number], 24, route))
        for _ in range(chance.randrange(150)):
            moves = world.moves()
            world._move(*chance.choice(moves))
        cut = chance.sample(STAGES[1:], 2)
        world.wire = {pair: messages for pair, messages in world.wire.items() if {*pair} != {*cut}}
        for name, other in (cut, cut[::-1]):
            world.workers[name].state.apply(PeerLost(other), world.now)
            world.collect(world.workers[name])
        world.run(seed)
        ran = {one.request for one in world.returned}
        assert ran | world.finished.keys() >= {*REQUESTS}, f"seed {seed}"
        assert {one.reason for one in world.returned} <= {"host-lost"}
        for number, request in enumerate(REQUESTS):
            whole = generate("a", [1, 2, 3 + number], 24, [])
            assert world.emitted[request] == whole[: len(world.emitted[request])]
        world.assert_quiet()
