"""Caps on KV memory by account: who is at one gives up its own cache, then waits and preempts among its own sequences."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.sweep.events import ComponentsRefused, ComponentsWanted
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, generate, replica, submission

BASE = chain("base")
CHUNK = 64 * 1024  # of which each holds one page of this chain


class CappedWorld(World):
    """Verifies the caps after every move: beyond its own an account has what others gave up, and takes nothing."""

    def _move(self, kind: str, what: object) -> bool:
        memories = [worker.state.parts.memory for worker in self.workers.values()]
        before = [memory.pages.accounts.all_held() for memory in memories]
        moved = super()._move(kind, what)
        for memory, had in zip(memories, before, strict=True):
            found = memory.pages.accounts.all_held()
            gave = any(found.get(account, 0) < nbytes for account, nbytes in had.items())
            for account, nbytes in found.items():
                cap = memory.cap(account)
                assert gave or cap is None or nbytes <= max(cap, had.get(account, 0)), account
        return moved


def world(chunks: int, share: dict[str, float], **more: object) -> World:
    size = {"budget": chunks * CHUNK, "chunk_size": 8, "sweep_tokens": 64, **more}
    return CappedWorld(["w0"], [BASE], [replica("w0", BASE)], tenant_kv_share=share, **size)  # type: ignore[arg-type]


def ask(made: World, name: str, tenant: str, prompt: list[int], limit: int, arrival: float = 0.0) -> None:
    made.submit(submission(name, prompt, len(prompt) + limit, "base@w0", tenant=tenant, arrival=arrival))


def held(state: SweepState) -> dict[str, int]:
    """Pages by account."""
    return {name: nbytes // CHUNK for name, nbytes in state.parts.memory.pages.accounts.all_held().items()}


def test_an_account_at_its_cap_gives_up_its_own_cache_and_no_other() -> None:
    made = world(20, {"a": 0.25})
    state = made.workers["w0"].state
    ask(made, "b0", "b", [1] * 17, 1)
    made.run()
    for number in range(5):
        ask(made, f"a{number}", "a", [2 + number] * 17, 1)
        made.run()
        assert held(state)["a"] <= 5
    assert held(state) == {"a": 4, "b": 4}
    assert state.parts.memory.cap_hits == {"a": 16}
    assert state.counters["preemptions"] == 0


def test_a_load_leaves_a_capped_account_what_it_waits_for() -> None:
    """To the byte: 0.58 of what is left is the sequence's 29 pages, or a rounding error less."""
    made = world(60, {"a": 0.58})
    state = made.workers["w0"].state
    ask(made, "waiting", "a", [1] * 8, 29 * 4 - 8)

    def load(number: int, nbytes: int) -> None:
        state.apply(ComponentsWanted(number, "new", [WantedComponent(b"new", [PackedTensor(b"t", nbytes)])]), 0.0)

    load(1, free := state.parts.memory.free_bytes)
    (refused,) = state.take_effects().orders
    assert isinstance(refused, ComponentsRefused)
    load(2, free - refused.shortage.lacking)
    made.run(0)
    assert len(made.emitted["waiting"]) == 29 * 4 - 8


@claim("A tenant stays within its cap of KV memory and holds up no other tenant", of="fine-tunes")
def test_an_account_at_its_cap_holds_up_nobody_else() -> None:
    """Its own older sequence goes on at the cost of its younger one; the other account starts and is not preempted."""
    made = world(40, {"flood": 0.2})
    state, worker = made.workers["w0"].state, made.workers["w0"]
    for number in range(6):
        ask(made, f"f{number}", "flood", [number] * 7, 17, arrival=float(number))
    for _ in range(30):
        made.start_plan(worker)
        made.end_plan(worker)
        state.check()
        assert held(state)["flood"] <= 8
    assert 0 < state.running < 6
    ask(made, "other", "other", [9] * 7, 60, arrival=100.0)
    made.start_plan(worker)
    rows = state.parts.rows
    s = rows.find("other")
    assert s is not None
    assert rows.row[s] >= 0, "it starts in the next plan"
    assert state.parts.memory.free_bytes > 0
    made.run()
    assert state.parts.memory.cap_hits["flood"] > 0
    assert state.counters["preemptions"] > 0
    assert len(made.finished) == 7
    assert made.emitted["other"] == generate("base", [9] * 7, 67, [])


def test_a_sequence_that_can_never_fit_its_accounts_cap_is_refused() -> None:
    made = world(40, {"a": 0.2, "*": 0.5})
    ask(made, "a0", "a", [1] * 7, 8 * 4 - 7)
    ask(made, "a1", "a", [1] * 7, 8 * 4 - 6)
    ask(made, "b0", "b", [1] * 7, 8 * 4 - 6)
    ask(made, "b1", "b", [1] * 7, 20 * 4 - 6)
    made.run()
    assert [back.request for back in made.returned] == ["a1", "b1"]
    assert "memory for 32" in made.returned[0].reason
    assert set(made.finished) == {"a0", "b0"}


@claim("A tenant stays within its cap of KV memory and holds up no other tenant", of="fine-tunes")
@given(
    seed=st.integers(0, 10_000), chunks=st.sampled_from([12, 20]), rows=st.sampled_from([3, 6]),
    share=st.sampled_from([{"a": 0.5}, {"*": 0.5}, {"a": 1.0, "b": 0.6}]),
)  # fmt: skip
@examples(60)
def test_no_account_exceeds_its_cap_and_all_requests_end(seed: int, chunks: int, rows: int, share: dict[str, float]) -> None:
    made, chance = world(chunks, share, max_rows=rows), random.Random(seed)
    due = {}
    for i in range(12):
        prompt = [chance.randrange(2)] * chance.randint(1, 12)
        limit = chance.randint(1, 8)
        ask(made, f"r{i}", chance.choice("aab"), prompt, limit, float(i))
        due[f"r{i}"] = generate("base", prompt, len(prompt) + limit, [])
    made.run(seed)
    assert {name: made.emitted[name] for name in due} == due
    assert not made.returned
    made.assert_quiet()


def test_an_account_does_not_pay_for_pages_that_only_others_list() -> None:
    """Of twelve pages each: a made the nine of a prompt that b goes on with, and starts another of six at once."""
    made = world(40, {"a": 0.3, "b": 0.3})
    worker, common = made.workers["w0"], [3] * 36
    ask(made, "first", "a", common, 1)
    ask(made, "other", "b", common, 11, arrival=1.0)
    while "first" not in made.finished:
        made.start_plan(worker)
        made.end_plan(worker)
    assert held(worker.state)["b"] >= 9
    ask(made, "next", "a", [4] * 20, 1, arrival=2.0)
    made.run()
    assert list(made.finished) == ["first", "next", "other"]
    made.assert_quiet()


@given(seed=st.integers(0, 10_000), chunks=st.sampled_from([10, 16, 24]))
@examples(40)
def test_whoever_pays_for_a_page_lists_it(seed: int, chunks: int) -> None:
    """As long as anybody does; ``check`` says so after each move, and snapshots keep it."""
    made = world(chunks, {"*": 0.5}, max_rows=5)
    chance, due = random.Random(seed), {}
    for i in range(12):
        prompt = [i % 2] * chance.randint(1, 14) + [chance.randrange(9)]
        limit = len(prompt) + chance.randint(1, min(6, 2 * chunks - len(prompt)))
        made.submit(submission(f"r{i}", prompt, limit, "base@w0", tenant="abc"[i % 3], arrival=float(i)))
        due[f"r{i}"] = generate("base", prompt, limit, [])
    for _ in range(6):
        made._move(*chance.choice(made.moves()))
    state = made.workers["w0"].state
    rows, pages = state.parts.rows, state.parts.memory.pages
    for s in rows.live():
        for handle in rows.handles(s):
            listed = {rows.tenant[other] for other in rows.live() if handle in rows.handles(other)}
            assert pages.account(handle) in listed
    again = SweepState.restore(state.snapshot())
    again.check()
    assert again.digest() == state.digest() == state.fork().digest()
    made.run(seed)
    assert {name: made.emitted[name] for name in due} == due
    made.assert_quiet()
