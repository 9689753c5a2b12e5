"""A sequence whose model computes what is no number ends there, and whoever runs beside it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.requests.admission import BROKEN
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base")
ROUTES = {"replica": replica("w0", BASE), "pipeline": pipeline(["w0", "w1"], BASE)}


@claim("A model whose logits overflow ends the request with an error and no other request", of="numerics")
@pytest.mark.parametrize("kind", ROUTES)
@given(seed=st.integers(0, 10_000), at=st.integers(0, 11), longest=st.integers(1, 20))
@examples(30)
def test_it_goes_back_with_a_reason_and_the_others_are_complete(kind: str, seed: int, at: int, longest: int) -> None:
    route = ROUTES[kind]
    workers = ["w0", "w1"][: len(route.hops)]
    world = World(workers, [BASE], [route], budget=40 * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=64)
    expected = {}
    for i in range(6):
        prompt = [(seed + i + j) % 7 for j in range(1 + (longest * (i + 1)) % 20)]
        expected[f"r{i}"] = generate("base", prompt, len(prompt) + 12, [])
        if i % 2:
            for worker in world.workers.values():
                worker.device.overflows[f"r{i}"] = len(prompt) + at
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, route.id, arrival=float(i)))
    world.run(seed)
    assert {back.request for back in world.returned} == {"r1", "r3", "r5"}
    assert all(back.reason.startswith(BROKEN) for back in world.returned)
    for name, tokens in expected.items():
        assert world.emitted[name] == (tokens[:at] if name in ("r1", "r3", "r5") else tokens)
    world.assert_quiet()
