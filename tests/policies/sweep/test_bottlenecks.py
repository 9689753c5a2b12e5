"""The choice of the surrogate that drafts on a worker: by the queues of its block instances, anew each second."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.chain import Block, Chain, Component
from blockwright.policies.model.partition import cut_blocks
from blockwright.policies.sweep.bottlenecks import PERIOD
from blockwright.policies.sweep.columns import Place
from blockwright.policies.sweep.draft_rows import REST
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from ..sweep_world import FakeWorker, World, chain, generate, replica, submission

SEEDS = 1000
PARTS = 100
DAILY = 2


def small(one: Component, name: str) -> Component:
    return replace(one, id=f"{name}/{one.id.decode()}".encode()[:16].ljust(16, b"."), nbytes=one.nbytes // 2)


def with_surrogate(own: Chain, number: int, first: int, last: int) -> Chain:
    """The chain that drafts for ``own`` with a surrogate of these components."""
    name = f"{own.application}~surrogate{number or ''}"
    there = [small(one, f"s{number}") if first <= place < last else one for place, one in enumerate(own.components)]
    return Chain(name, (Block(tuple(there)),), own.max_length, drafts_for=own.application)


def heavy(own: Chain, first: int, last: int, times: int) -> Chain:
    """``own`` with components that have so many times the bytes."""
    there = [
        replace(one, nbytes=one.nbytes * times) if first <= place < last else one for place, one in enumerate(own.components)
    ]
    return Chain(own.application, (Block(tuple(there)),), own.max_length)


def cut(*chains: Chain) -> list[Chain]:
    """These chains, cut into blocks as the controller cuts them."""
    found = cut_blocks({one.application: one.components for one in chains})
    return [replace(one, blocks=found[one.application]) for one in chains]


A = heavy(chain("a", 4), 1, 3, 3)  # nearly as slow as the second layers of b
B = heavy(chain("b", 4, own_from=0), 3, 5, 4)
CHAINS = cut(A, B, with_surrogate(A, 0, 1, 3), with_surrogate(A, 2, 5, 7), with_surrogate(B, 0, 3, 5))


def world(**config: object) -> World:
    values: dict[str, object] = {"budget": 64 << 20, **config}
    return World(["w0"], CHAINS, [replica("w0", one) for one in CHAINS], **values)  # type: ignore[arg-type]


def only(played: World) -> FakeWorker:
    return played.workers["w0"]


def drafted(application: str, tokens: int = 2) -> DraftOptions:
    return DraftOptions(tokens=tokens, model=f"{application}~surrogate")


def choice(state: SweepState) -> list[str]:
    """The drafting chains of a and b now."""
    return [state.parts.bottlenecks.drafter(name, f"{name}~surrogate") for name in "ab"]


def plan(played: World) -> None:
    assert played.start_plan(only(played))
    assert played.end_plan(only(played))


@claim("The application with the slowest block drafts, and who does is chosen anew each second", of="adaptive")
def test_the_choice_follows_the_queues() -> None:
    played = world()
    state = only(played).state
    assert choice(state) == ["", ""], "nothing waits"
    played.submit(submission("r", [1, 2, 3], 200, "a@w0", drafts=drafted("a")))
    for _ in range(3):
        plan(played)
    assert choice(state) == ["a~surrogate", ""]
    assert state.parts.bottlenecks.drafter("a", "other") == "other", "a model that a request names drafts"
    for number in range(3):
        played.submit(submission(f"b{number}", [4, number], 150, "b@w0", drafts=drafted("b")))
    played.now = 0.9 * PERIOD
    plan(played)
    assert choice(state) == ["a~surrogate", ""], "not before a second has passed"
    rows = state.parts.rows
    assert [rows.route[s].route.application for s in rows.live() if rows.place[s] == Place.DRAFT] == ["a~surrogate"]
    played.now = PERIOD
    for _ in range(4):
        plan(played)
    assert choice(state) == ["", "b~surrogate"], "a tenth of eight blocks is one"
    drafting = {rows.route[s].route.application for s in rows.live() if rows.place[s] == Place.DRAFT}
    assert drafting == {"b~surrogate"}, "the row of a has given way"
    played.run()
    played.assert_quiet()
    assert played.emitted["r"] == generate("a", [1, 2, 3], 200, [])
    assert state.parts.bottlenecks.choices >= 2


def test_the_slowest_block_of_a_chain_decides_which_surrogate_drafts() -> None:
    state = only(world()).state
    chains = cut(
        heavy(chain("a", 4), 5, 7, 9), with_surrogate(chain("a", 4), 0, 1, 3), with_surrogate(chain("a", 4), 2, 5, 7)
    )
    played = World(["w0"], chains, [replica("w0", one) for one in chains])
    state = only(played).state
    played.submit(submission("r", [1, 2, 3], 100, "a@w0", drafts=drafted("a")))
    plan(played)
    assert state.parts.bottlenecks.drafter("a", "a~surrogate") == "a~surrogate2"
    played.run()
    assert played.emitted["r"] == generate("a", [1, 2, 3], 100, [])
    assert state.counters["drafted_tokens"] > 0


def test_a_sequence_whose_block_is_slow_no_more_rests_from_drafts() -> None:
    played = world()
    played.submit(submission("r", [1, 2, 3], 200, "a@w0", drafts=drafted("a")))
    plan(played)
    plan(played)
    for number in range(4):
        played.submit(submission(f"b{number}", [4, number], 150, "b@w0"))
    played.now = PERIOD
    plan(played)
    plan(played)
    state = only(played).state
    assert choice(state) == ["", "b~surrogate"]
    s = state.parts.rows.find("r")
    assert s is not None
    assert state.parts.drafts.draft_row(s) == -1
    assert state.parts.drafts.rests(s, state.parts.rows.length[s] + REST // 2)
    played.run()
    played.assert_quiet()


def test_a_snapshot_has_the_choice_and_a_fork_its_own() -> None:
    played = world()
    played.submit(submission("r", [1, 2, 3], 200, "a@w0", drafts=drafted("a")))
    plan(played)
    state = only(played).state
    again = SweepState.restore(state.snapshot())
    assert again.digest() == state.digest()
    assert choice(again) == choice(state) == ["a~surrogate", ""]
    fork = state.fork()
    fork.parts.bottlenecks.learn([])
    assert (choice(fork)[0], choice(state)[0]) == ("a~surrogate", "a~surrogate"), "unknown, so the name as it is"
    assert state.digest() == again.digest() != fork.digest()


@claim("Speculation across changing bottlenecks changes no token, loses none and repeats none", of="adaptive")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_no_token_changes_whoever_drafts(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        chance = random.Random(seed)
        played = world(max_rows=8, budget=chance.choice([6, 32]) << 20)
        expected = {}
        for number in range(12):
            name, length = chance.choice("ab"), chance.randrange(1, 20)
            prompt = [chance.randrange(50) for _ in range(length)]
            limit = length + chance.randrange(1, 60)
            drafts = drafted(name, chance.choice([0, 1, 3]))
            played.submit(submission(f"r{number}", prompt, limit, f"{name}@w0", arrival=float(number), drafts=drafts))
            expected[f"r{number}"] = generate(name, prompt, limit, [])
            for _ in range(chance.randrange(8)):
                played.now += chance.random()
                played.start_plan(only(played))
                played.end_plan(only(played))
        for _ in range(400):
            played.now += chance.random()
            played.start_plan(only(played))
            played.end_plan(only(played))
        played.run(seed)
        played.assert_quiet()
        assert {name: played.emitted[name] for name in expected} == expected, f"seed {seed}"
