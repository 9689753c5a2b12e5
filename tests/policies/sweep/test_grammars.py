"""A sequence with a grammar is prefilled while that is compiled, draws nothing before, and draws the same afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.plan.grammar import REGEX, Grammar, TokenVocabulary
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.admission import REFUSED, UNHELD
from blockwright.policies.requests.urgency import offline_urgency
from blockwright.policies.sweep.events import GrammarReady, GrammarUnused, GrammarWanted, TokensEmitted
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import COMPILER, World, chain, generate, pipeline, replica, submission

BASE = chain("base")
ROUTES = {"replica": replica("w0", BASE), "pipeline": pipeline(["w0", "w1"], BASE)}


def constrained(text: str, *, forced: bool = False) -> SamplingParams:
    vocabulary = TokenVocabulary(file="", digest=b"", size=100, ends=[99])
    return SamplingParams(temperature=0.0, grammar=Grammar(form=REGEX, text=text, vocabulary=vocabulary, forced=forced))


def world(kind: str) -> World:
    route = ROUTES[kind]
    workers = ["w0", "w1"][: len(route.hops)]
    return World(workers, [BASE], [route], budget=40 * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=64)


@pytest.mark.parametrize("kind", ROUTES)
@given(seed=st.integers(0, 10_000), bad=st.booleans(), forced=st.booleans())
@examples(40)
def test_tokens_are_the_same_whenever_the_grammar_comes(kind: str, seed: int, bad: bool, forced: bool) -> None:
    """A constrained request runs forced, drafted, offline, preempted or in a pipeline.

    A grammar that cannot be compiled fails its sequences alone.
    """
    made = world(kind)
    if bad:
        made.uncompilable["bad"] = "it is bad"
    expected = {}
    for i in range(8):
        prompt = [(seed + i + j) % 7 for j in range(1 + (seed * (i + 1)) % 20)]
        name = f"r{i}"
        expected[name] = generate("base", prompt, len(prompt) + 12, [])
        sampling = constrained("bad" if i % 4 == 1 else "good", forced=forced) if i % 2 else SamplingParams(temperature=0.0)
        drafts = DraftOptions(True, 2, expected[name]) if i % 3 == 0 else None
        priority = offline_urgency() if i == 7 else 0
        more = {"arrival": float(i), "drafts": drafts, "priority": priority}
        made.submit(submission(name, prompt, len(prompt) + 12, ROUTES[kind].id, sampling=sampling, **more))
    made.run(seed)
    given_up = {back.request for back in made.returned if back.reason.startswith(UNHELD)}
    assert given_up == ({"r1", "r5"} if bad else set())
    others = {back.request for back in made.returned} - given_up  # offline, without room
    assert others <= {"r7"}
    for name in expected.keys() - given_up - others:
        assert made.emitted[name] == expected[name]
    assert not any(made.emitted[name] for name in given_up)
    made.assert_quiet()


def orders(state: SweepState) -> list[object]:
    return [one for one in state.take_effects().orders if isinstance(one, GrammarWanted | GrammarUnused)]


def test_the_prompt_is_computed_but_for_its_last_token() -> None:
    made = world("replica")
    state = made.workers["w0"].state
    sampling = constrained("a")
    assert sampling.grammar is not None
    key = sampling.grammar.key
    state.apply(submission("r", list(range(10)), 14, ROUTES["replica"].id, sampling=sampling), 0.0)
    computed = []
    while (plan := state.plan(0.0)) is not None:
        computed += [*zip(plan.start, plan.count, plan.sample or [-1], strict=True)]
        state.commit(plan, made.workers["w0"].device.execute(plan, state.batch(plan.number)), 0.0)
    assert computed == [(0, 8, -1), (8, 1, -1)]
    assert orders(state) == [GrammarWanted(sampling.grammar)]
    state.apply(submission("s", list(range(20, 23)), 5, ROUTES["replica"].id, sampling=sampling), 0.0)
    plan = state.plan(0.0)
    assert plan is not None
    state.commit(plan, made.workers["w0"].device.execute(plan, state.batch(plan.number)), 0.0)
    assert orders(state) == []  # it is being compiled
    state.check()
    copy = SweepState.restore(state.snapshot())
    state.apply(GrammarReady(key), 0.0)
    copy.apply(GrammarReady(key), 0.0)
    state.check()
    assert copy.digest() == state.digest()
    while (plan := state.plan(0.0)) is not None:
        state.commit(plan, made.workers["w0"].device.execute(plan, state.batch(plan.number)), 0.0)
    assert orders(state) == []  # it is kept for the next request
    assert state.parts.memory.grammar_bytes == 2 * 64 * 1024
    state.check()


def test_a_forecast_waits_for_no_grammar() -> None:
    made = world("replica")
    state = made.workers["w0"].state
    state.apply(submission("r", [1, 2, 3], 5, ROUTES["replica"].id, sampling=constrained("a")), 0.0)
    copy = state.fork()
    copy.without_device()
    plan = copy.plan(0.0)
    assert plan is not None
    assert plan.sample == [0]
    copy.check()


def test_a_host_grants_its_lease_when_the_grammar_is_compiled() -> None:
    made = world("pipeline")
    host = made.workers["w1"]
    made.submit(submission("r", [1, 2, 3], 5, ROUTES["pipeline"].id, sampling=constrained("a")))
    made.start_plan(made.workers["w0"])
    made.deliver(("w0", "w1"))
    assert not made.wire.get((COMPILER, "w0"))  # the home draws nothing
    made.start_plan(host)
    assert not made.wire.get(("w1", "w0"))
    copy = SweepState.restore(host.state.snapshot())
    copy.check()
    assert copy.digest() == host.state.digest() == host.state.fork().digest()
    (ready,) = made.wire[COMPILER, "w1"]
    copy.apply(ready, 0.0)  # type: ignore[arg-type]
    made.deliver((COMPILER, "w1"))
    assert [(one.lease, one.refused) for one in made.wire["w1", "w0"]] == [(1, "")]  # type: ignore[attr-defined]
    assert copy.digest() == host.state.digest()


def test_a_grammar_that_failed_is_compiled_again_for_the_next() -> None:
    made = world("replica")
    state = made.workers["w0"].state
    sampling = constrained("a")
    assert sampling.grammar is not None
    for name in ("r", "s"):
        state.apply(submission(name, [1], 5, ROUTES["replica"].id, sampling=sampling), 0.0)
        assert state.plan(0.0) is None
        assert orders(state) == [GrammarWanted(sampling.grammar)]
        state.apply(GrammarReady(sampling.grammar.key, "it is bad"), 0.0)
        effects = state.take_effects()
        assert [(back.request, back.reason) for back in effects.news] == [(name, UNHELD + "it is bad")]  # type: ignore[union-attr]
        assert effects.orders == [GrammarUnused(sampling.grammar.key)]
        state.check()
    assert not made.wire.get((COMPILER, "w0"))


@claim("Forced tokens come whole, in one event, and end where the answer ends", of="structured-output")
@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("limit", [4, 5, 9, 40])
def test_forced_tokens_are_computed_together(kind: str, limit: int) -> None:
    made = world(kind)
    prompt = [1, 2, 3]
    expected = generate("base", prompt, 3 + limit, [])
    made.submit(submission("r", prompt, 3 + limit, ROUTES[kind].id, sampling=constrained("a", forced=True)))
    made.run(1)
    assert made.emitted["r"] == expected
    device = made.workers["w1" if kind == "pipeline" else "w0"].device
    if limit == 40:
        assert device.forced
    made.assert_quiet()


def test_a_forced_run_is_one_round() -> None:
    """The drawn token, the forced ones behind it, and the one that is drawn behind them, in one event."""
    made = world("replica")
    state = made.workers["w0"].state
    state.apply(submission("r", [1], 28, ROUTES["replica"].id, sampling=constrained("a", forced=True)), 0.0)
    assert state.plan(0.0) is None  # its only token is computed with the first draw
    state.apply(GrammarReady(orders(state)[0].grammar.key), 0.0)  # type: ignore[attr-defined]
    forced: list[int] = []
    runs = 0
    while (plan := state.plan(0.0)) is not None and plan.count:
        assert plan.count[0] == (1 if not plan.start[0] else 1 + len(forced))
        assert state.plan(0.0) is None  # what comes next is not known
        result = made.workers["w0"].device.execute(plan, state.batch(plan.number))
        state.commit(plan, result, 0.0)
        (news,) = [one for one in state.take_effects().news if isinstance(one, TokensEmitted)]
        assert news.tokens[: len(forced)] == forced
        assert len(news.tokens) == len(forced) + 1
        forced = result.forced[0][1] if result.forced else []
        forced = forced[: 28 - 1 - news.position - len(news.tokens)]
        runs += len(forced) > 1
        copy = SweepState.restore(state.snapshot())
        assert copy.digest() == state.digest() == state.fork().digest()
        state.check()
    assert runs > 2


CHUNK = 64 * 1024
SIZE = 2  # chunks of a grammar of these tests, with its table of tokens


def full_world(chunks: int) -> tuple[SweepState, World]:
    made = World(["w0"], [BASE], [ROUTES["replica"]], budget=chunks * CHUNK, chunk_size=64, max_rows=4, sweep_tokens=64)
    return made.workers["w0"].state, made


def finish(state: SweepState, made: World, *, ready: bool = True) -> list[object]:
    """Run what is there to its end; return the orders about grammars."""
    told: list[object] = []
    while True:
        plan = state.plan(0.0)
        found = orders(state)
        told += found
        for one in found:
            if ready and isinstance(one, GrammarWanted):
                state.apply(GrammarReady(one.grammar.key), 0.0)
        state.check()
        if plan is None and not (ready and found):
            return told
        if plan is not None:
            state.commit(plan, made.workers["w0"].device.execute(plan, state.batch(plan.number)), 0.0)


def longest(state: SweepState) -> int:
    """The tokens of the longest sequence that fits."""
    local = state.parts.routes.home(ROUTES["replica"].id)
    assert local is not None
    return state.parts.memory.pages_of(local.kv, "") * state.parts.config.page_size


def free_chunks(state: SweepState) -> int:
    return state.parts.memory.free_bytes // CHUNK


@claim(
    "Compiled constraints and tables of tokens take from a worker's memory budget, and give way to requests",
    of="structured-output",
)
def test_grammars_and_pages_share_the_budget() -> None:
    """Cached pages give way to a grammar, and one without sequences to pages."""
    state, made = full_world(24)
    everything = free_chunks(state)
    room = longest(state)
    long = submission("long", [n % 7 for n in range(room - 4)], room, ROUTES["replica"].id)
    state.apply(long, 0.0)
    assert finish(state, made) == []
    assert free_chunks(state) < SIZE  # the prefix cache has the rest
    sampling = constrained("a")
    assert sampling.grammar is not None
    state.apply(submission("bound", [9, 9, 9], 6, ROUTES["replica"].id, sampling=sampling), 0.0)
    assert finish(state, made) == [GrammarWanted(sampling.grammar)]
    assert state.parts.memory.grammar_bytes == SIZE * CHUNK
    copy = SweepState.restore(state.snapshot())
    copy.check()
    assert copy.digest() == state.digest() == state.fork().digest()
    state.apply(submission("again", [9, 9, 8], 6, ROUTES["replica"].id, sampling=sampling), 0.0)
    assert finish(state, made) == []  # it was kept
    other = submission("other", [n % 5 for n in range(room - 4)], room, ROUTES["replica"].id)
    state.apply(other, 0.0)
    assert finish(state, made) == [GrammarUnused(sampling.grammar.key)]
    assert (state.parts.memory.grammar_bytes, everything) == (0, 24)


def test_a_sequence_that_never_fits_beside_its_grammar_is_refused_with_numbers() -> None:
    state, made = full_world(24)
    room = longest(state)
    sampling = constrained("a")
    state.apply(submission("bound", [1] * (room - 4), room, ROUTES["replica"].id, sampling=sampling), 0.0)
    (back,) = state.take_effects().news
    left = room - SIZE * room // 24
    reason = (
        f"{REFUSED}the sequence needs memory for {room} tokens and a worker has memory for {left} beside the 113.9 KiB of "
    )
    assert back.reason.startswith(reason), back.reason  # type: ignore[union-attr]
    state.apply(submission("free", [1] * (room - 4), room, ROUTES["replica"].id), 0.0)
    assert finish(state, made) == []


def test_a_sequence_waits_for_the_memory_of_its_grammar() -> None:
    """The others keep theirs. It starts when one of them has ended."""
    state, made = full_world(24)
    room = longest(state)
    sampling = constrained("a")
    assert sampling.grammar is not None
    state.apply(submission("long", [n % 7 for n in range(room - 4)], room, ROUTES["replica"].id), 0.0)
    plan = state.plan(0.0)
    state.apply(submission("bound", [9, 9, 9], 6, ROUTES["replica"].id, sampling=sampling), 0.0)
    assert plan is not None
    state.commit(plan, made.workers["w0"].device.execute(plan, state.batch(plan.number)), 0.0)
    told = finish(state, made, ready=False)
    assert told == [GrammarWanted(sampling.grammar)]
    assert not state.parts.queue.waiting
