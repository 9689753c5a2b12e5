"""Microbatches of a pipeline: equal shares that keep together, at most one for each stage, and prompts cut to fill them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.lookahead import ChunkCost
from blockwright.policies.sweep.columns import Place
from blockwright.policies.sweep.events import CostsLearned
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from .sweep_world import FakeWorker, World, chain, generate, pipeline, submission

ROWS = 12
COSTS = Coefficients(base=0.5, read=1.0, token=0.2, prefill=0.02, context=0.01)


def piped(stages: int, **config: object) -> tuple[World, FakeWorker, str]:
    """Two applications on one path, which begins at the worker that is returned; the route of the first."""
    workers = [f"w{i}" for i in range(stages)]
    chains = [chain("base", layers=3), chain("other", layers=3, own_from=3)]
    numbers = {"chunk_size": 8, "max_rows": 2 * ROWS, "sweep_tokens": 64, **config}
    world = World(workers, chains, [pipeline(workers, one) for one in chains], **numbers)  # type: ignore[arg-type]
    return world, world.workers["w0"], f"base@{'+'.join(workers)}"


def away(home: FakeWorker) -> int:
    path = "+".join(sorted({"w1", "w2", "w3"} & set(_hosts(home)), reverse=True))
    return len(home.state.parts.leases.microbatches(path))


def _hosts(home: FakeWorker) -> list[str]:
    rows = home.state.parts.rows
    return [hop.worker for s in rows.live() for hop in rows.route[s].route.hops]


def gather(world: World, home: FakeWorker) -> None:
    """All that is away comes back, and nothing leaves."""
    while away(home) or home.open:
        others = [(kind, what) for kind, what in world.moves() if (kind, what) != ("plan", home)]
        assert any(world._move(kind, what) for kind, what in others)


def decoding(stages: int) -> tuple[World, FakeWorker]:
    """ROWS sequences at home on w0, all of which have tokens, none in flight."""
    world, home, route = piped(stages)
    for i in range(ROWS):
        world.submit(submission(f"r{i}", [i, i + 1, i + 2], 60, route, arrival=float(i)))
    while not all(world.emitted[f"r{i}"] for i in range(ROWS)):
        assert any(world._move(kind, what) for kind, what in world.moves())
    gather(world, home)
    return world, home


def departures(world: World, home: FakeWorker) -> list[list[int]]:
    """Sequences of each plan that the home makes until it waits for somebody to come back."""
    found = []
    while world.start_plan(home):
        found.append(sorted(home.state.batch(home.open[0][0].number)))
        world.end_plan(home)
    return found


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_stage_gets_its_share_and_no_more_are_away(stages: int) -> None:
    world, home = decoding(stages)
    assert list(map(len, departures(world, home))) == [ROWS // stages] * stages
    assert away(home) == stages
    world.run(1)
    for i in range(ROWS):
        assert world.emitted[f"r{i}"] == generate("base", [i, i + 1, i + 2], 60, [])
    world.assert_quiet()


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_who_left_together_leaves_together_whatever_comes_back_first(stages: int) -> None:
    world, home = decoding(stages)
    first = departures(world, home)
    for _ in range(5):
        gather(world, home)
        assert departures(world, home) == first


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_shares_are_equal_again_when_sequences_end(stages: int) -> None:
    """All of the first microbatch end. The others are dealt out, and leave in equal shares again after a round."""
    world, home = decoding(stages)
    gone = departures(world, home)[0]
    gather(world, home)
    for s in gone:
        world.cancel(home.state.parts.rows.submission[s].request)
    departures(world, home)
    gather(world, home)
    left = ROWS - len(gone)
    shares = list(map(len, departures(world, home)))
    assert sum(shares) == left
    assert max(shares) <= -(-left // stages)


def test_a_microbatch_waits_for_its_rest_while_another_one_can_leave() -> None:
    """Rows of two applications leave together, in two flights, of which one comes back first."""
    world, home, _ = piped(2)
    for i in range(8):
        world.submit(submission(f"r{i}", [i, i + 1], 60, f"{('base', 'other')[i % 2]}@w0+w1", arrival=float(i)))
    while not all(world.emitted[f"r{i}"] for i in range(8)):
        assert any(world._move(kind, what) for kind, what in world.moves())
    gather(world, home)
    first, second = departures(world, home)
    host, pair = world.workers["w1"], ("w0", "w1")
    world.deliver(pair)
    while world.start_plan(host):
        world.end_plan(host)
    while world.wire[("w1", "w0")]:
        world.deliver(("w1", "w0"))
    leases = home.state.parts.leases
    assert 0 < sum(not leases.is_away(s) for s in first) < len(first)
    assert departures(world, home) == []
    while world.wire[pair]:
        world.deliver(pair)
    gather(world, home)
    assert departures(world, home) == [first, second]


@pytest.mark.parametrize("seed", parts(30, 8))
def test_no_more_leave_than_shares_whatever_happens(seed: int) -> None:
    """Whoever comes, ends, is preempted or cancelled: at most as many microbatches as stages, none above its share."""
    chance = random.Random(seed)
    stages = chance.choice((2, 3, 4))
    world, home, route = piped(stages, budget=chance.choice((1 << 20, 8 << 20)), max_rows=chance.choice((4, 24)))
    rows, leases = home.state.parts.rows, home.state.parts.leases
    if chance.random() < 0.5:
        home.state.apply(CostsLearned(COSTS), 0.0)
    expected = {}
    for i in range(14):
        application, prompt = chance.choice(("base", "other")), [chance.randrange(40) for _ in range(chance.randint(1, 30))]
        expected[f"r{i}"] = generate(application, prompt, len(prompt) + 9, [])
        name = route.replace("base", application)
        world.submit(submission(f"r{i}", prompt, len(prompt) + 9, name, arrival=chance.random(), tenant=chance.choice("ab")))
        if chance.random() < 0.2:
            gone = chance.choice(sorted(expected))
            expected.pop(gone)
            world.cancel(gone)
        for _ in range(chance.randint(0, 60)):
            forward = [s for s in home.state.parts.queue.running if rows.place[s] == Place.FORWARD]
            share = -(-sum(rows.known[s] - rows.planned[s] <= 1 for s in forward) // stages)
            prompts = {s for s in forward if rows.known[s] - rows.planned[s] > 1}
            began, number = {s: leases.left(s) for s in forward}, home.state.number
            world._move(*chance.choice(world.moves()))
            assert away(home) <= stages
            if home.state.number > number:
                batch = Counter(home.state.batch(number)) - Counter(prompts)
                assert sum(batch[s] for s in batch if s in began) <= share
    world.run(seed)
    assert {name: world.emitted[name] for name in expected} == expected
    world.assert_quiet()


def test_chunks_of_a_lone_prompt_follow_one_another() -> None:
    """Each leaves when the stage before is free, though none is back; the token after it waits for all of them."""
    world, home, route = piped(3)
    prompt = list(range(40))
    world.submit(submission("r0", prompt, 45, route))
    start(world, home, 1)
    counts = []
    while world.start_plan(home):
        counts.append(home.open[0][0].count)
        world.end_plan(home)
    (s,) = home.state.parts.queue.running
    assert counts == [[8], [8], [8]]
    assert home.state.parts.rows.open[s] == home.state.parts.leases.flying(s) == 3
    world.run(3)
    assert world.emitted["r0"] == generate("base", prompt, 45, [])
    world.assert_quiet()


def start(world: World, home: FakeWorker, count: int) -> None:
    """So many sequences have their leases and start with the next plan."""
    while len(home.state.parts.leases.urgent) < count:
        assert any(world._move(kind, what) for kind, what in world.moves())


def cuts(world: World, home: FakeWorker, length: int) -> list[list[tuple[int, int]]]:
    """(first position, tokens) of the chunks in each microbatch until two prompts of this length have been computed."""
    found: list[list[tuple[int, int]]] = []
    while sum(count for some in found for _, count in some) < 2 * length:
        while world.start_plan(home):
            plan = home.open[0][0]
            found.append([one for one in zip(plan.start, plan.count, strict=True) if one[0] < length])
            world.end_plan(home)
        others = [(kind, what) for kind, what in world.moves() if (kind, what) != ("plan", home)]
        assert any(world._move(kind, what) for kind, what in others)
    return [some for some in found if some]


@claim("Pipelines of prompts are cut into microbatches of equal time", of="serving")
def test_prompts_that_wait_are_cut_so_that_one_microbatch_takes_as_long_as_the_next() -> None:
    """By the cost model that an event brings; what it brings is in snapshots, and forks go on alike."""
    world, home, route = piped(2, chunk_size=64, sweep_tokens=128)
    home.state.apply(CostsLearned(COSTS), 0.0)
    for i in range(2):
        world.submit(submission(f"r{i}", [i, *range(59)], 64, route, arrival=float(i)))
    start(world, home, 2)
    copies = [home.state.fork(), SweepState.restore(home.state.snapshot())]
    assert {copy.digest() for copy in copies} == {home.state.digest()}
    price = ChunkCost.of(COSTS, 2)
    costs = [sum(price.chunk(start, count) for start, count in some) for some in cuts(world, home, 60)]
    assert len(costs) > 4
    assert max(max(a, b) / min(a, b) for a, b in pairwise(costs[:-1])) < 1.6
    assert {copy.config.costs for copy in copies} == {COSTS}
    world.run(2)
    world.assert_quiet()


def test_without_a_cost_model_tokens_count_and_nothing_is_cut_below_a_chunk() -> None:
    world, home, route = piped(2)
    for i in range(2):
        world.submit(submission(f"r{i}", [i, *range(63)], 68, route, arrival=float(i)))
    start(world, home, 2)
    made = [sum(count for _, count in some) for some in cuts(world, home, 64)]
    assert 4 <= min(made[:-1]) <= max(made) <= 16
