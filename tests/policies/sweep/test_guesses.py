"""Guesses of hidden states at the border of a pipeline: nothing leaves before its verdict, nobody reads what follows.

The fake last stage draws another token on a bad guess, and the fake devices mark what was computed on a guess. So a token
that leaves too early, and a page that is found under a lineage that did not make it, are seen at once.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from blockwright.policies.adaptive.guessing import guessing_chain
from blockwright.policies.model.chain import Block, Chain, Route
from blockwright.policies.model.partition import cut_blocks
from blockwright.policies.plan.grammar import REGEX, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.sweep.columns import PURE
from blockwright.policies.sweep.events import GuessesJudged, Started
from blockwright.policies.sweep.guesses import NEVER, GuessTable
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from ..sweep_world import FakeWorker, World, chain, generate, pipeline, replica, submission

SEEDS = 1000
PARTS = 50
DAILY = 3
LAYERS = 4


def guessing(own: Chain, border: int, depth: int) -> Chain:
    """The chain that guesses for ``own`` at a border, with a surrogate from ``depth`` on."""
    parts = [
        replace(one, id=f"surrogate/{place}".encode().ljust(16, b"."), nbytes=one.nbytes // 2)
        if depth <= place < border
        else one
        for place, one in enumerate(own.components[:border])
    ]
    block = Block((*parts, own.components[-1]))
    return Chain(guessing_chain(own.application), (block,), own.max_length, drafts_for=own.application)


def cut(border: int, *chains: Chain) -> list[Chain]:
    """Return the chains cut as the controller cuts them: at borders of hops, too."""
    found = cut_blocks({one.application: one.components for one in chains}, {"base": [border]})
    return [replace(one, blocks=found[one.application]) for one in chains]


class GuessWorld(World):
    """A pipeline of two or three workers, at whose first border hidden states are guessed."""

    def __init__(self, stages: int = 2, *, alike: int = 60, beside: bool = False, **config: object) -> None:
        base = chain("base", LAYERS)
        workers = [f"w{n}" for n in range(stages)]
        route = pipeline(workers, base)
        border = route.hops[0].last
        chains = cut(border, base, guessing(base, border, 1))
        routes: list[Route] = [route, replica("w0", chains[1])]
        if beside:
            routes += [pipeline([*reversed(workers)], base)]
        self.judged: list[GuessesJudged] = []
        self.alike = alike
        self.lives = 0
        super().__init__(workers, chains, routes, **{"budget": 16 << 20, **config})  # type: ignore[arg-type]

    def start(self, name: str) -> None:
        super().start(name)
        self.workers[name].device.alike = self.alike

    def hear(self, effects: list[Any]) -> list[Any]:
        self.judged += [one for one in effects if isinstance(one, GuessesJudged)]
        return effects

    @property
    def home(self) -> FakeWorker:
        return self.workers["w0"]

    @property
    def last(self) -> FakeWorker:
        return [*self.workers.values()][-1]

    def counts(self) -> tuple[int, int]:
        return tuple(self.home.state.counters[name] for name in ("guessed_states", "accepted_guesses"))  # type: ignore[return-value]


def route_of(stages: int) -> str:
    return "base@" + "+".join(f"w{n}" for n in range(stages))


@pytest.mark.parametrize("stages", [2, 3])
def test_a_guess_leaves_before_its_block_is_done_and_its_token_after_the_verdict(stages: int) -> None:
    played = GuessWorld(stages, alike=100)
    local = played.home.state.parts.routes.home(route_of(stages))
    assert local is not None
    assert local.guess is not None
    assert local.guess.spans[0].layer == LAYERS, "behind the layers of the chain"
    played.submit(submission("r", [1, 2, 3], 24, route_of(stages)))
    played.run()
    played.assert_quiet()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 24, [])
    assert played.counts() == (20, 20), "all positions but the prompt, behind which the first token is drawn"
    assert [(one.request, one.guesses, one.accepted) for one in played.judged] == [("r", 1, 1)] * 20
    rows = played.last.state.parts.rows
    assert not rows.live()


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(("alike", "exact"), [(0, False), (50, False), (100, True)])
def test_a_bad_guess_is_computed_again(stages: int, alike: int, exact: bool) -> None:
    played = GuessWorld(stages, alike=alike, exact=exact)
    played.submit(submission("r", [1, 2, 3], 40, route_of(stages)))
    played.run()
    played.assert_quiet()
    assert played.emitted["r"] == generate("base", [1, 2, 3], 40, [])
    made, accepted = played.counts()
    assert made == 36
    assert (accepted == 0) == (alike == 0 or exact)
    assert played.last.device.mistaken >= (made - accepted if not exact else 0)


@claim("Nothing that was drawn on a guess leaves before its verdict", of="adaptive")
def test_what_is_drawn_on_a_guess_waits_for_its_verdict() -> None:
    """The home stands still with its block half done: the last stage is through, and says nothing."""
    played = GuessWorld(alike=100)
    played.submit(submission("r", [1, 2, 3], 24, route_of(2)))
    while not played.home.open or not any(guess.sent.rows for guess in played.home.open[-1][0].guesses):
        played.start_plan(played.home)
        for pair in [pair for pair, waiting in played.wire.items() if waiting]:
            played.deliver(pair)
        played.start_plan(played.last)
        played.end_plan(played.last)
        if played.home.open and not any(guess.sent.rows for guess in played.home.open[0][0].guesses):
            played.end_plan(played.home)
    for _ in range(4):
        for pair in [pair for pair, waiting in played.wire.items() if waiting]:
            played.deliver(pair)
        played.start_plan(played.last)
        played.end_plan(played.last)
    held = played.last.state.parts.guesses.open
    assert [(one.done, one.stands, len(one.tokens)) for one in held.values()] == [(True, False, 1)]
    assert not any(played.wire.values()), "no result is on its way"
    before = len(played.emitted["r"])
    again = SweepState.restore(played.last.state.snapshot())
    assert again.digest() == played.last.state.digest()
    assert again.fork().parts.guesses.open == held
    played.run()
    assert len(played.emitted["r"]) > before
    assert played.emitted["r"] == generate("base", [1, 2, 3], 24, [])


@claim("Pages behind the border are private from the first accepted guess on, and shared before it", of="adaptive")
@pytest.mark.parametrize(("alike", "exact", "found"), [(100, False, 2), (0, False, 5), (100, True, 5)])
def test_pages_after_an_accepted_guess_are_nobody_elses(alike: int, exact: bool, found: int) -> None:
    played = GuessWorld(alike=alike, exact=exact)
    prompt = [*range(1, 10)]
    played.submit(submission("r", prompt, 22, route_of(2)))
    played.run()
    whole = [*prompt, *played.emitted["r"]]
    played.submit(submission("s", whole, 30, route_of(2)))
    played.run()
    played.assert_quiet()
    assert played.emitted["s"] == generate("base", whole, 30, [])
    assert played.home.state.counters["cached_tokens"] == 4 * found, "of 21 positions of which 9 are the prompt"
    assert played.last.state.parts.rows.live() == []


def test_grammars_vectors_and_prompts_are_not_guessed() -> None:
    played = GuessWorld(alike=100, chunk_size=1)
    vocabulary = TokenVocabulary(file="", digest=b"", size=100, ends=[99])
    grammar = Grammar(form=REGEX, text="a*", vocabulary=vocabulary)
    played.submit(submission("g", [1, 2, 3], 12, route_of(2), sampling=SamplingParams(temperature=0.0, grammar=grammar)))
    played.run()
    assert played.counts() == (0, 0)
    played.submit(submission("r", [1, 2, 3, 4, 5], 12, route_of(2)))
    played.run()
    assert played.counts() == (7, 7), "the last position of a prompt draws a token, too, if it is computed alone"
    played.assert_quiet()


def test_the_table_of_guesses() -> None:
    table = GuessTable()
    table.come(1, 5)
    assert table.compute(1, 4, [9], []) is None
    assert table.compute(1, 5, [9], []) is None
    guess = table.accept(1, 5)
    assert guess is not None
    assert (guess.start, guess.tokens, table.open) == (5, [9], {})
    assert table.accept(2, 7) is None  # before the guess itself
    table.come(2, 7)
    assert table.open[2].stands
    assert table.compute(2, 7, [8], []) is not None
    table.come(3, 1)
    table.fall(3, 1)
    assert table.compute(3, 1, [7], []) is None
    table.fall(3, 2)
    table.come(4, 1)
    table.end(4)
    assert table.open == {}
    assert NEVER > 1
    assert PURE > 1 << 50


def test_a_forecast_makes_no_guesses() -> None:
    played = GuessWorld(alike=100)
    played.submit(submission("r", [1, 2, 3], 24, route_of(2)))
    fork = played.home.state.fork()
    fork.without_device()
    plan = fork.plan(0.0)
    assert plan is None or not any(guess.sent.rows for guess in plan.guesses)


@claim(
    "With guesses no token is lost or repeated, and none that a fallen guess drew leaves, whatever dies",
    of="adaptive",
)
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_no_token_is_lost_repeated_or_drawn_on_a_bad_guess(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        _play(seed)


def _play(seed: int) -> None:
    chance = random.Random(seed)
    stages = chance.choice([2, 2, 3])
    exact, alike = chance.random() < 0.3, chance.choice([0, 30, 80, 100])
    played = GuessWorld(
        stages, alike=alike, exact=exact, max_rows=chance.choice([3, 8]), budget=chance.choice([5, 16]) << 20
    )
    expected: dict[str, list[int]] = {}
    for number in range(chance.randrange(4, 12)):
        common = [7, 8, 9, 10, 11][: chance.randrange(6)]
        prompt = [*common, *[chance.randrange(50) for _ in range(chance.randrange(1, 14))]]
        limit = len(prompt) + chance.randrange(1, 40)
        stop = [chance.randrange(50)] if chance.random() < 0.3 else []
        name = f"r{number}"
        played.submit(submission(name, prompt, limit, route_of(stages), stop=stop, arrival=float(number)))
        expected[name] = generate("base", prompt, limit, stop)
        for _ in range(chance.randrange(60)):
            kind, what = chance.choice(played.moves())
            played._move(kind, what)
        if chance.random() < 0.2:
            gone = chance.choice([*expected])
            played.cancel(gone)
            if gone not in played.finished:
                assert played.emitted[gone] == expected.pop(gone)[: len(played.emitted[gone])]
        if chance.random() < 0.15:
            _kill(played, chance.choice([*played.workers]), stages, expected)
    played.run(seed)
    _send_again(played, expected, stages)
    played.run(seed)
    played.assert_quiet()
    assert {name: played.emitted[name] for name in expected} == expected, f"seed {seed}"


def _kill(played: GuessWorld, name: str, stages: int, expected: dict[str, list[int]]) -> None:
    """A worker dies and comes back; the gateway sends again what had not ended."""
    played.kill(name)
    played.lives += 1
    played.start(name)
    played.workers[name].state.apply(Started(played.lives), played.now)
    played.workers = {one: played.workers[one] for one in sorted(played.workers)}
    for other in played.workers.values():
        other.state.check()
    _send_again(played, expected, stages, home_died=name == "w0")


def _send_again(played: GuessWorld, expected: dict[str, list[int]], stages: int, *, home_died: bool = False) -> None:
    back = {one.request for one in played.returned}
    played.returned.clear()
    for name in expected:
        if name in played.finished or not (home_died or name in back):
            continue
        of = played.submitted[name]
        tokens = [*of.tokens[: of.prompt_length], *played.emitted[name]]
        played.submit(replace(of, attempt=of.attempt + 1, tokens=tokens, route=route_of(stages)))
