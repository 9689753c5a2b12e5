"""Cached pages of offline requests are given up before those that online requests have made or used."""

from __future__ import annotations

from blockwright.policies.sweep.events import Submission
from blockwright.policies.sweep.state import SweepState

from .offline_world import commit, offline, online, world


def ended(state: SweepState) -> None:
    """Run all that is there to its end."""
    while (plan := state.plan(0.0)) is not None:
        commit(state, plan)


def found(state: SweepState, of: Submission) -> int:
    """Tokens of its prompt that it finds."""
    copy = state.fork()
    before = copy.counters["cached_tokens"]
    copy.apply(of, 0.0)
    ended(copy)
    return copy.counters["cached_tokens"] - before


def flood(state: SweepState, count: int, prompt: int = 40) -> None:
    """So many offline prompts, each of its own, one after the other through the whole memory."""
    for i in range(count):
        state.apply(offline(f"f{i}", [100 + i] * prompt, 4, float(i)), 0.0)
        ended(state)
    state.take_effects()


def test_offline_pages_go_before_cached_prefixes_of_online_requests() -> None:
    """Fifty offline prompts of 10 pages pass through a memory of 60; an online prefix of 20 that is older than all is there
    after them, and theirs are not."""
    state = world(60).workers["w0"].state
    state.apply(online("a", [1] * 80, 1), 0.0)
    ended(state)
    again = online("b", [1] * 80, 1)
    before = found(state, again)
    assert before >= 76
    flood(state, 50)
    state.check()
    assert found(state, again) == before
    assert found(state, online("o", [100] * 40, 1)) == 0, "the first of the offline ones"
    assert found(state, online("o", [149] * 40, 1)) > 0, "the last of them is still there"


def test_of_more_than_a_quarter_of_the_memory_online_prefixes_give_way_the_oldest_first() -> None:
    state = world(60).workers["w0"].state
    for i in range(5):
        state.apply(online(f"a{i}", [i] * 40, 1), 0.0)
        ended(state)
    state.apply(offline("o", [200] * 120, 4), 0.0)  # 31 pages, of which at most 10 are free
    state.apply(offline("p", [201] * 40, 4), 0.0)
    ended(state)
    kept = [found(state, online("b", [i] * 40, 1)) > 0 for i in range(5)]
    assert kept == sorted(kept), "the oldest are gone"
    assert sum(kept) >= 1


def test_a_quarter_of_the_memory_of_online_prefixes_outlives_any_number_of_offline_requests() -> None:
    """Several at a time: one that is alone may have all memory."""
    state = world(60).workers["w0"].state
    for i in range(5):
        state.apply(online(f"a{i}", [i] * 40, 1), 0.0)
        ended(state)
    idle, (arena,) = state.parts.memory.pages.idle, state.parts.memory.pages.idle.slots
    for i in range(30):
        state.apply(offline(f"f{i}", [100 + i] * 40, 30, float(i)), 0.0)
        while state.running + state.waiting > 2 and (plan := state.plan(0.0)) is not None:
            commit(state, plan)
            state.take_effects()
            kept = (idle.slots[arena] - idle.early_slots[arena]) // 2
            assert kept >= 15 + 7, f"after {i} offline requests"
    assert kept == 15 + 7, "an eighth of the memory is for online requests besides, and nothing else needs it"


def test_an_offline_page_that_an_online_request_uses_is_kept_as_its_own() -> None:
    state = world(60).workers["w0"].state
    state.apply(offline("o", [7] * 40, 4), 0.0)
    ended(state)
    state.apply(online("a", [7] * 40, 1), 0.0)
    ended(state)
    flood(state, 50)
    state.check()
    assert found(state, online("b", [7] * 40, 1)) > 0


def test_an_order_that_is_restored_has_offline_pages_first() -> None:
    state = world(60).workers["w0"].state
    flood(state, 2)
    state.apply(online("a", [1] * 40, 1), 0.0)
    ended(state)
    flood(state, 4)
    again = SweepState.restore(state.snapshot())
    again.check()
    assert again.digest() == state.digest()
    for one in (state, again):
        flood(one, 20)
    assert again.digest() == state.digest()
