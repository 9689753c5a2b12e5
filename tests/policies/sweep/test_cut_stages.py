"""Two stages of a pipeline that lose each other while the home reaches both: what ran there goes back to the home."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.sweep.events import PeerLost
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.policies.sweep_world import World, chain, generate, pipeline, submission


class Cut(World):
    """A world in which two workers may be cut off from each other. Whatever comes later and needs both goes back at once."""

    pair: tuple[str, ...] = ()

    def deliver(self, pair: tuple[str, str]) -> None:
        super().deliver(pair)
        if pair[1] in self.pair:
            self.lose(pair[1])

    def lose(self, name: str) -> None:
        (other,) = {*self.pair} - {name}
        self.workers[name].state.apply(PeerLost(other), self.now)
        self.collect(self.workers[name])


STAGES = ["w0", "w1", "w2", "w3"]
REQUESTS = [f"r{number}" for number in range(4)]
SEEDS, PARTS = 400, 20


@claim("Sequences over two stages of a pipeline that lost each other go back to their home, which reaches both", of="faults")
@pytest.mark.parametrize("part", parts(PARTS, 2))
def test_the_home_hears_of_a_cut_between_two_others(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        chance, own = random.Random(seed), chain("a", 4)
        world = Cut(STAGES, [own], [pipeline(STAGES, own)], budget=64 << 20)
        route = f"a@{'+'.join(STAGES)}"
        for number, request in enumerate(REQUESTS):
            world.submit(submission(request, [1, 2, 3 + number], 24, route))
        for _ in range(chance.randrange(150)):
            moves = world.moves()
            world._move(*chance.choice(moves))
        cut = world.pair = tuple(chance.sample(STAGES[1:], 2))
        world.wire = {pair: messages for pair, messages in world.wire.items() if {*pair} != {*cut}}
        for name in cut:
            world.lose(name)
        world.run(seed)
        ran = {one.request for one in world.returned}
        assert ran | world.finished.keys() >= {*REQUESTS}, f"seed {seed}"
        assert {one.reason for one in world.returned} <= {"host-lost"}
        for number, request in enumerate(REQUESTS):
            whole = generate("a", [1, 2, 3 + number], 24, [])
            assert world.emitted[request] == whole[: len(world.emitted[request])]
        world.assert_quiet()
