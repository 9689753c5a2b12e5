"""Fair share: who starts next among accounts, what they pay, and how far two that always wait can drift apart."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.urgency import urgency
from blockwright.policies.sweep.events import TokensEmitted
from blockwright.policies.sweep.fair_share import SCALE, FairShare
from blockwright.policies.sweep.sequence_queue import Key, SequenceQueue
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base")
IN, OUT = 1, 2  # costs
TIERS = ("priority", "default", "flex")


def queue(**weights: int) -> SequenceQueue:
    return SequenceQueue(FairShare(weights, IN, OUT))


def key(s: int, priority: int = 0) -> Key:
    return (priority, float(s), s)


def drained(made: SequenceQueue, keys: dict[int, tuple[Key, str]], cost: int = 10) -> list[int]:
    """All that waits, in the order in which it starts; each start costs so many prompt tokens."""
    order = []
    while made.waiting:
        s = made.first()
        order.append(s)
        made.remove(*keys[s])
        made.charge_prompt(*keys[s], cost)
    return order


def pushed(made: SequenceQueue, accounts: str) -> dict[int, tuple[Key, str]]:
    keys = {s: (key(s), account) for s, account in enumerate(accounts)}
    for waiting in keys.values():
        made.push(*waiting)
    return keys


# the order -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(TIERS), st.integers(-5, 5), st.integers(0, 3)), min_size=1))
def test_with_one_account_the_order_is_that_of_priority_and_arrival(asked: list[tuple[str, int, int]]) -> None:
    made = queue()
    keys = {s: ((urgency(tier, n), float(at), s), "") for s, (tier, n, at) in enumerate(asked)}
    for waiting in keys.values():
        made.push(*waiting)
    assert drained(made, keys, cost=7) == [s for _, _, s in sorted(k for k, _ in keys.values())]


def test_accounts_take_turns_however_many_wait_for_one_of_them() -> None:
    made = queue()
    assert drained(made, pushed(made, "aaaaaabbb")) == [6, 0, 7, 1, 8, 2, 3, 4, 5]


@claim("Tenants share the server by token cost, according to their weights", of="fine-tunes", headline=True)
def test_an_account_of_weight_two_starts_twice_as_often() -> None:
    made = queue(b=2)
    assert drained(made, pushed(made, "aaaabbbb")) == [0, 4, 5, 6, 1, 7, 2, 3]


def test_a_tier_above_the_default_goes_first_within_its_account_alone() -> None:
    made = queue()
    keys = {s: (key(s, urgency("priority" if s in (2, 4) else "default", 0)), "aaaab"[s]) for s in range(5)}
    for waiting in keys.values():
        made.push(*waiting)
    made.charge_prompt(*keys[4], 15)
    assert drained(made, keys) == [2, 0, 4, 1, 3]


def test_priorities_preempt_within_an_account_and_age_between_accounts() -> None:
    """Two requests that fit alone: an urgent one takes memory from those of its own account, not from others."""
    for tenants, first in (("aa", "late"), ("ab", "early")):
        made = world(budget=9 * 64 * 1024, prefix_cache=False)
        for i, (name, tier) in enumerate((("early", "default"), ("late", "priority"))):
            fields = {"tenant": tenants[i], "priority": urgency(tier, -100 * i), "arrival": float(i)}
            made.submit(submission(name, [i] * 4, 32, "base@w0", **fields))
            made.start_plan(made.workers["w0"])
            made.end_plan(made.workers["w0"])
        made.run()
        assert made.workers["w0"].state.counters["preemptions"]
        assert next(iter(made.finished)) == first


def test_the_later_class_goes_last_and_has_its_own_counters() -> None:
    made = queue()
    keys = {0: (key(0, urgency("flex", 0)), "a"), 1: (key(1), "b"), 2: (key(2), "b"), 3: (key(3), "c")}
    made.charge_prompt(*keys[1], 100)
    for waiting in keys.values():
        made.push(*waiting)
    made.charge_prompt(*keys[1], 1)
    assert drained(made, keys) == [3, 1, 2, 0]


def test_who_begins_to_wait_is_lifted_to_the_least_of_its_own_class() -> None:
    """What other classes were given is another service: neither more nor less of it counts."""
    share = FairShare({}, IN, OUT)
    first, later = [(0, "a"), (0, "b")], [(1, "a"), (1, "b")]
    for flow, tokens in zip((*first, *later), (500, 300, 20, 90), strict=True):
        share.charge_prompt(flow, tokens)
    share.join((0, "c"), [*first, *later])
    assert share.counter((0, "c")) == 300 * SCALE
    share.join((1, "c"), [*first, *later])
    assert share.counter((1, "c")) == 20 * SCALE
    share.join((2, "c"), [*first, *later])
    assert share.counter((2, "c")) == 0, "nobody of its class waits or has waited"
    share.quit((1, "b"))
    share.join((0, "d"), later)
    assert share.counter((0, "d")) == 0
    share.join((1, "d"), first)
    assert share.counter((1, "d")) == 90 * SCALE
    share.join((1, "e"), later)
    assert share.counter((1, "e")) == 20 * SCALE, "the last to wait counts where nobody waits"


def test_an_account_is_forgotten_once_it_is_no_more_than_those_of_its_class_that_wait() -> None:
    share = FairShare({}, IN, OUT)
    for flow, tokens in (((0, "a"), 50), ((0, "b"), 50), ((1, "b"), 900)):
        share.charge_prompt(flow, tokens)
    assert not share.forget("a", []), "it would come back without what it was given above others"
    assert share.counter((0, "a")) == 50 * SCALE
    assert not share.forget("a", [(1, "b")]), "who waits in another class says nothing"
    assert share.forget("a", [(0, "b"), (1, "b")])
    assert share.counter((0, "a")) == 0
    assert share.served == {"b": 950}
    share.quit((0, "b"))
    assert not share.forget("b", [(0, "b"), (1, "b")]), "others are lifted to what the last to wait was given"


def test_whoever_was_idle_saves_nothing_up() -> None:
    """Lifted to the least counter of those that wait, or to that of the account that waited last."""
    made = queue()
    keys = pushed(made, "aabb")
    for s in (0, 1, 2, 3):
        made.charge_prompt(*keys[s], 500)
    made.push(key(4), "c")
    assert made.share.counter((0, "c")) == made.share.counter((0, "a")) == 1000 * SCALE
    made.remove(key(4), "c")
    drained(made, keys)
    made.push(key(5), "d")
    assert made.share.counter((0, "d")) == made.share.counter((0, "b"))


def test_accounts_that_are_left_out_wait() -> None:
    made = queue()
    pushed(made, "ab")
    assert made.first({"a"}) == 1
    assert made.first({"a", "b"}) == -1


# what is paid --------------------------------------------------------------------------------------------------------


def world(**more: object) -> World:
    return World(["w0"], [BASE], [replica("w0", BASE)], chunk_size=16, sweep_tokens=64, **{"budget": 8 << 20, **more})  # type: ignore[arg-type]


def served(state: SweepState) -> dict[str, int]:
    return state.parts.queue.share.served


def test_the_first_user_of_shared_pages_pays_for_them() -> None:
    made = world()
    made.submit(submission("r0", list(range(17)), 18, "base@w0", tenant="a"))
    made.submit(submission("r1", list(range(17)), 18, "base@w0", tenant="b"))
    made.run()
    assert served(made.workers["w0"].state) == {"a": 17 * IN + OUT, "b": (17 - 16) * IN + OUT}


def counts_beside_a_decoding_row(tenants: tuple[str, str, str], priorities: tuple[int, int] = (0, 0)) -> list[int]:
    """Tokens of the rows of a sweep of 64, where the first has begun to answer and the two others come together."""
    state = world().workers["w0"].state
    for i, tenant in enumerate(tenants):
        if i == 1:
            plan = state.plan(0.0)
            assert plan is not None
            state.commit(plan, SweepResult(plan.number, [1]), 0.0)
        prompt = list(range(100 * i, 100 * i + 12))
        urgent = priorities[min(i, 1)]
        state.apply(submission(f"r{i}", prompt, 40, "base@w0", tenant=tenant, arrival=float(i), priority=urgent), 0.0)
    plan = state.plan(0.0)
    assert plan is not None
    return plan.count


def test_prompts_leave_most_of_a_sweep_to_others_decoding_but_never_to_their_own_accounts() -> None:
    """A start is charged for at once: an account that is alone must not seem to have been given more than itself."""
    assert counts_beside_a_decoding_row(("a", "a", "a")) == [1, 12, 12]
    assert counts_beside_a_decoding_row(("a", "b", "b")) == [1, 12, 4]  # a quarter: b was given more when its first started
    assert counts_beside_a_decoding_row(("a", "a", "a"), (0, urgency("flex", 0))) == [1, 12, 4]


@given(seed=st.integers(0, 10_000), chunks=st.sampled_from([9, 12, 40]))
@examples(60)
def test_every_position_is_paid_for_once_however_often_it_is_computed(seed: int, chunks: int) -> None:
    """Preemptions, chunks and page borders change nothing of the bill: uncached prompt tokens and generated ones."""
    made = world(budget=chunks * 64 * 1024, prefix_cache=False)
    chance = random.Random(seed)
    due = {"a": 0, "b": 0}
    for i in range(8):
        prompt = [chance.randrange(9) for _ in range(chance.randint(1, 20))]
        limit, tenant = chance.randint(1, 15), "ab"[i % 2]
        made.submit(submission(f"r{i}", prompt, len(prompt) + limit, "base@w0", tenant=tenant, arrival=float(i)))
        due[tenant] += len(prompt) * IN + limit * OUT
    made.run(seed)
    assert served(made.workers["w0"].state) == due


# the bound -----------------------------------------------------------------------------------------------------------


def drive(state: SweepState) -> list[dict[str, int]]:
    """Plan and commit until one of the accounts has nothing waiting; after each sweep what each was really given: the cost
    of prompt positions that were computed and of tokens that were drawn.
    """
    given: dict[str, int] = {"a": 0, "b": 0}
    history, tenants = [dict(given)], state.parts.rows
    while all(sum(t == name for _, t in _waiting(state)) for name in given):
        plan = state.plan(0.0)
        assert plan is not None
        for s, start, count in zip(state.batch(plan.number), plan.start, plan.count, strict=True):
            prompt = tenants.submission[s].prompt_length
            given[tenants.tenant[s]] += IN * max(0, min(start + count, prompt) - start)
        names = {tenants.submission[s].request: tenants.tenant[s] for s in state.batch(plan.number)}
        state.commit(plan, SweepResult(plan.number, [1] * len(plan.sample)), 0.0)
        for effect in state.take_effects().news:
            if isinstance(effect, TokensEmitted):
                given[names[effect.request]] += OUT * len(effect.tokens)
        history.append(dict(given))
    return history


def _waiting(state: SweepState) -> list[tuple[Key, str]]:
    rows = state.parts.rows
    return [(rows.key(s), rows.tenant[s]) for s in rows.live() if rows.status[s] == 1]


def backlogged(seed: int, weights: dict[str, int]) -> tuple[SweepState, list[dict[str, int]], int]:
    """Two accounts of unlike requests that both always wait; the history, and the paper's U for it."""
    rows = 5
    prompts = (24, 6)
    answers = (4, 18)
    chance = random.Random(seed)
    state = world(max_rows=rows, tenant_weights=weights).workers["w0"].state
    for i in range(300):
        which = chance.random() < 0.5
        prompt = [chance.randrange(1000) for _ in range(chance.randint(1, prompts[which]))]
        limit = len(prompt) + chance.randint(1, answers[which])
        state.apply(submission(f"r{i}", prompt, limit, "base@w0", tenant="ab"[which], arrival=float(i)), 0.0)
    history = drive(state)
    return state, history, max(IN * max(prompts), OUT * rows * max(answers))


@claim("Tenants share the server by token cost, according to their weights", of="fine-tunes", headline=True)
@given(seed=st.integers(0, 10_000), weight=st.sampled_from([1, 2, 5]))
@examples(25)
def test_two_accounts_that_always_wait_differ_by_at_most_the_papers_bound(seed: int, weight: int) -> None:
    """Theorem 4.4: over any interval service by weight differs by at most 2 U. A prompt is paid for at its start, an answer
    page by page; so what is really given comes up to a batch of these earlier or later.
    """
    _, history, bound = backlogged(seed, {"a": weight})
    late = 5 * max(IN * 24, OUT * 4)
    apart = [entry["a"] / weight - entry["b"] for entry in history]
    assert len(history) > 100
    assert max(apart) - min(apart) <= 2 * bound + late


def test_without_accounts_of_their_own_they_drift_apart_without_bound() -> None:
    """The same two crowds, one of which came before the other, in the order of arrival."""
    made = world(max_rows=5)
    state = made.workers["w0"].state
    for i in range(300):
        state.apply(submission(f"r{i}", [i] * 6, 24, "base@w0", tenant="same", arrival=float(i)), 0.0)
    while state.waiting > 150:
        plan = state.plan(0.0)
        assert plan is not None
        state.commit(plan, SweepResult(plan.number, [1] * len(plan.sample)), 0.0)
    begun = {n for n in range(300) if state.parts.rows.find(f"r{n}") is None}
    assert max(begun) < 150, "not one of the second crowd has ended: it was given nothing"


# nobody starves, and answers stay ------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), chunks=st.sampled_from([10, 16, 40]), share=st.sampled_from([{}, {"a": 0.6}]))
@examples(60)
def test_every_request_ends_with_its_own_tokens_whatever_the_accounts(
    seed: int, chunks: int, share: dict[str, float]
) -> None:
    routes = [replica("w0", BASE), pipeline(["w0", "w1"], BASE)]
    made = World(["w0", "w1"], [BASE], routes, budget=chunks * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=32,
                 tenant_kv_share=share, tenant_weights={"b": 3})  # fmt: skip
    chance = random.Random(seed)
    due = {}
    for i in range(12):
        prompt = [chance.randrange(3) for _ in range(chance.randint(1, 12))]
        more = {"tenant": chance.choice("aaabc"), "priority": urgency(chance.choice(TIERS), 0), "arrival": float(i)}
        limit = len(prompt) + chance.randint(1, 10)
        made.submit(submission(f"r{i}", prompt, limit, chance.choice(routes).id, **more))
        due[f"r{i}"] = generate("base", prompt, limit, [])
    made.run(seed)
    assert not made.returned
    assert {name: made.emitted[name] for name in due} == due
    made.assert_quiet()
