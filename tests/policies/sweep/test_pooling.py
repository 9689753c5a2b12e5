"""Sequences that give vectors: once each, of all their positions, wherever they run and whatever they share."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.plain import from_plain, to_plain
from blockwright.policies.plan.pooling import Pooling
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..fake_device import vector
from ..sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base")
ROUTES = {
    "replica": replica("w0", BASE),
    "pipeline": pipeline(["w0", "w1"], BASE),
    "three": pipeline(["w0", "w1", "w2"], BASE),
}
MEAN = SamplingParams(temperature=0.0, pooling=Pooling(modes=["mean"]))
LAST = SamplingParams(temperature=0.0, pooling=Pooling(modes=["lasttoken"]))


def pooled(name: str, prompt: list[int], route: str, params: SamplingParams = MEAN, **more: object) -> Submission:
    return submission(name, prompt, len(prompt), route, sampling=params, **more)


@claim(
    "A vector is pooled from every position of its text exactly once, also after preemptions and beside other requests",
    of="embeddings",
)
@pytest.mark.parametrize("kind", ROUTES)
@given(seed=st.integers(0, 10_000), longest=st.integers(1, 40), pages=st.integers(12, 60))
@examples(25)
def test_every_position_is_pooled_once(kind: str, seed: int, longest: int, pages: int) -> None:
    """Prompts share beginnings, memory is scarce, and requests that generate run among them."""
    chance, route = random.Random(seed), ROUTES[kind]
    workers = [f"w{i}" for i in range(len(route.hops))]
    world = World(workers, [BASE], [route], budget=pages * 64 * 1024, chunk_size=5, max_rows=3, sweep_tokens=16)
    texts, answers = {}, {}
    common = [chance.randrange(7) for _ in range(longest)]
    for i in range(9):
        prompt = [*common[: chance.randrange(longest) + 1], i]
        name = f"r{i}"
        if i % 3 == 2:
            answers[name] = generate("base", prompt, len(prompt) + 5, [])
            world.submit(submission(name, prompt, len(prompt) + 5, route.id, arrival=float(i)))
        else:
            texts[name] = prompt
            world.submit(pooled(name, prompt, route.id, MEAN if i % 3 else LAST, arrival=float(i)))
    world.run(seed)
    gone = {back.request for back in world.returned}
    assert gone == set() or pages < 30
    assert world.vectors == {name: vector(prompt) for name, prompt in texts.items() if name not in gone}
    assert {name: world.emitted[name] for name in answers if name not in gone} == {
        name: tokens for name, tokens in answers.items() if name not in gone
    }
    assert {world.finished[name] for name in world.vectors} == {"stop"}
    world.assert_quiet()


@pytest.mark.parametrize("kind", ROUTES)
def test_a_found_prefix_is_skipped_unless_its_states_are_needed(kind: str) -> None:
    route = ROUTES[kind]
    world = World([f"w{i}" for i in range(len(route.hops))], [BASE], [route])
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for name, params in (("a", LAST), ("b", LAST), ("c", MEAN)):
        before = world.workers["w0"].device.computed_tokens
        world.submit(pooled(name, prompt, route.id, params))
        world.run()
        assert world.vectors[name] == vector(prompt)
        assert world.workers["w0"].device.computed_tokens - before == (1 if name == "b" else 9)


def test_a_text_may_fill_the_context() -> None:
    """A vector needs no memory behind the text's."""
    world = World(["w0"], [BASE], [ROUTES["replica"]], budget=64 << 20)
    longest = BASE.max_length
    world.submit(pooled("a", [i % 7 for i in range(longest)], "base@w0"))
    world.submit(pooled("b", [1] * (longest + 1), "base@w0"))
    world.run()
    assert world.vectors == {"a": vector([i % 7 for i in range(longest)])}
    assert [back.request for back in world.returned] == ["b"]


def test_after_the_death_of_a_worker_it_is_pooled_again() -> None:
    routes = [ROUTES["pipeline"], replica("w2", BASE)]
    world = World(["w0", "w1", "w2"], [BASE], routes, chunk_size=4)
    prompt = [5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5]
    world.submit(pooled("a", prompt, routes[0].id))
    for _ in range(12):
        for kind, what in world.moves()[:3]:
            world._move(kind, what)
    assert not world.vectors
    world.kill("w1")
    world.run()
    world.submit(pooled("a", prompt, routes[1].id, attempt=2))
    world.run()
    assert world.vectors == {"a": vector(prompt)}


def test_a_forecast_ends_where_the_vector_does() -> None:
    """Without a device, a vector is a token; the copy ends as the worker does."""
    world = World(["w0"], [BASE], [ROUTES["replica"]], chunk_size=4)
    world.submit(pooled("a", [1] * 10, "base@w0"))
    state = world.workers["w0"].state.fork()
    state.without_device()
    finishes = []
    for now in range(6):
        if (plan := state.plan(float(now))) is not None:
            state.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), float(now))
            finishes += [one.finish for one in state.take_effects().news if getattr(one, "finish", "")]
    assert finishes == ["stop"]
    assert not state.parts.rows.live()


def test_it_survives_a_snapshot() -> None:
    world = World(["w0"], [BASE], [ROUTES["replica"]], chunk_size=4)
    world.submit(pooled("a", [1] * 10, "base@w0"))
    state = world.workers["w0"].state
    assert SweepState.restore(state.snapshot()).digest() == state.digest()
    of = pooled("b", [1], "base@w0")
    assert from_plain(Submission, to_plain(of)) == of
