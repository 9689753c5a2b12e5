"""Memory that is just enough: several layouts, several spans, several homes on a host. Nothing may crash or stand still."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.tests.claims import claim
from blockwright.tests.parts import examples, parts

from .fake_device import CHUNK
from .sweep_world import World, chain, generate, guesses, pipeline, replica, submission

BASE = chain("base")


def fill(world: World, seed: int, count: int, routes: list[str], *, new: int, longest: int = 20) -> dict[str, list[int]]:
    """``count`` sequences with random prompts, of which many begin alike; by name, what each must yield."""
    chance, drafts = random.Random(seed), random.Random(f"{seed}/drafts")
    expected = {}
    for i in range(count):
        route = chance.choice(routes)
        prompt = [chance.randrange(2)] * chance.randint(0, 12) + [
            chance.randrange(40) for _ in range(chance.randint(1, longest - 12))
        ]
        limit = len(prompt) + new
        expected[f"r{i}"] = generate(route.partition("@")[0], prompt, limit, [])
        more = {"priority": chance.choice([0, 0, 1]), "drafts": guesses(expected[f"r{i}"], drafts)}
        world.submit(submission(f"r{i}", prompt, limit, route, arrival=float(i), **more))
    return expected


def assert_all(world: World, expected: dict[str, list[int]]) -> None:
    assert {name: world.emitted[name] for name in expected} == expected
    assert set(world.finished) >= set(expected)
    world.assert_quiet()


def test_cached_pages_of_one_layout_give_way_to_sequences_of_another() -> None:
    other = chain("other", own_from=0, heads=2)
    world = World(["w0"], [BASE, other], [replica("w0", BASE), replica("w0", other)], budget=6 * CHUNK)
    world.submit(submission("a", list(range(21)), 24, "base@w0"))  # fills the memory with cached pages
    world.run(0)
    world.submit(submission("b", list(range(21)), 24, "other@w0"))
    world.run(0)
    assert_all(world, {"b": generate("other", list(range(21)), 24, [])})


@given(seed=st.integers(0, 10_000), budget=st.sampled_from([9, 11, 14, 20]))
@examples(60)
def test_layouts_and_spans_share_tight_memory(seed: int, budget: int) -> None:
    tuned, other = chain("tuned", own_from=3), chain("other", own_from=0, heads=2)
    routes = [replica("w0", c) for c in (BASE, tuned, other)]
    world = World(["w0"], [BASE, tuned, other], routes, budget=budget * CHUNK, chunk_size=8, max_rows=4, sweep_tokens=24)
    expected = fill(world, seed, 12, [r.id for r in routes], new=8)
    world.run(seed)
    assert_all(world, expected)


@given(seed=st.integers(0, 10_000), budget=st.sampled_from([12, 16, 30]))
@examples(60)
def test_several_homes_share_a_host_whose_memory_is_tight(seed: int, budget: int) -> None:
    base, tuned = chain("base", layers=3), chain("tuned", layers=3, own_from=4)
    groups = [["w0", "w2"], ["w1", "w2"], ["w0", "w1", "w2"], ["w2"]]
    routes = [pipeline(g, c) for g in groups for c in (base, tuned)]
    world = World(
        ["w0", "w1", "w2"], [base, tuned], routes, budget=budget * 2 * CHUNK, chunk_size=8, max_rows=4, sweep_tokens=32
    )
    expected = fill(world, seed, 14, [r.id for r in routes], new=8)
    world.run(seed)
    assert_all(world, expected)


@claim("Pipelines over workers with tight memory do not wait for each other in a circle", of="serving")
@pytest.mark.parametrize(("budget", "rows"), [(11, 8), (16, 8), (64, 1)])
@pytest.mark.parametrize("seed", parts(4, 2))
def test_pipelines_of_different_length_over_the_same_workers_do_not_wait_in_a_circle(
    seed: int, budget: int, rows: int
) -> None:
    """The home of the short one is a host of the long one, which holds leases there and waits behind the short one's."""
    long = chain("base", layers=4)
    short = chain("other", layers=4, own_from=0)
    workers = ["w0", "w1", "w2", "w3"]
    routes = [pipeline(workers, long), pipeline(workers[2:], short)]
    world = World(workers, [long, short], routes, budget=budget * CHUNK, chunk_size=8, max_rows=rows, sweep_tokens=64)
    chance, expected = random.Random(seed), {}
    for i in range(12):
        route, prompt = routes[i % 2], [chance.randrange(40) for _ in range(10)]
        expected[f"r{i}"] = generate(route.application, prompt, 28, [])
        world.submit(submission(f"r{i}", prompt, 28, route.id, arrival=chance.random()))
    world.run(seed)
    assert_all(world, expected)


@pytest.mark.parametrize("seed", parts(8, 3))
def test_guests_of_chains_that_share_their_lower_part_fit_whole_or_wait(seed: int) -> None:
    """The host has two spans for one sequence; both must fit before it is granted a lease."""
    base, tuned = chain("base", layers=4), chain("tuned", layers=4, own_from=4)
    workers = ["w0", "w1"]
    routes = [pipeline(workers, c).id for c in (base, tuned)] + [replica("w1", c).id for c in (base, tuned)]
    known = [r for c in (base, tuned) for r in (pipeline(workers, c), replica("w1", c))]
    world = World(workers, [base, tuned], known, budget=13 * CHUNK, chunk_size=8, max_rows=8, sweep_tokens=64)
    expected = fill(world, seed, 16, routes, new=8, longest=16)
    world.run(seed)
    assert_all(world, expected)


def test_a_prompt_waits_when_those_that_run_will_need_the_memory() -> None:
    world = World(["w0"], [BASE], [replica("w0", BASE)], budget=11 * CHUNK, chunk_size=4, max_rows=8, sweep_tokens=64)
    for i in range(2):
        world.submit(submission(f"r{i}", [i] * 24, 26, "base@w0", arrival=float(i)))
    state = world.workers["w0"].state
    assert state.plan(0.0) is not None
    assert (state.running, state.waiting) == (1, 1)
