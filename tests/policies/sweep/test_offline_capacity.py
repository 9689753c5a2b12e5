"""What a worker says that it takes of offline requests, in numbers."""

from __future__ import annotations

import pytest

from blockwright.policies.sweep.offline_capacity import AHEAD, OfflineCapacity
from blockwright.policies.sweep.state import SweepState

from .offline_world import commit, offline, online, world

PAGES, RESERVED = 160, 20  # an eighth


def reported(state: SweepState) -> OfflineCapacity:
    (one,) = state.offline_capacities()
    return one


def test_of_an_idle_worker_all_memory_and_all_rows_but_those_of_the_reserve() -> None:
    state = world(PAGES).workers["w0"].state
    assert reported(state) == OfflineCapacity(("base",), 7, 4 * PAGES, 4 * PAGES)


def test_nothing_is_taken_while_online_requests_wait() -> None:
    state = world(PAGES).workers["w0"].state
    state.apply(online("a", [1] * 8, 9), 0.0)
    assert reported(state).rows == 0
    plan = state.plan(0.0)
    assert plan is not None
    assert reported(state).rows == 6, "it has started"
    commit(state, plan)
    state.apply(offline("o", [2] * 8, 9), 0.0)
    assert reported(state).rows == 6, "one that is offline may wait"


def test_beside_others_a_reserve_and_what_prompts_will_still_take_is_left_out() -> None:
    state = world(PAGES, sweep_tokens=8).workers["w0"].state
    reserve = 2 * (8 + 8) // 4
    state.apply(offline("o", [2] * 80, 9), 0.0)
    assert state.plan(0.0) is not None
    assert reported(state) == OfflineCapacity(("base",), 0, 4 * (PAGES - reserve - 20), 4 * PAGES)


@pytest.mark.parametrize("tokens", [8 * AHEAD - 1, 8 * AHEAD])
def test_prompts_of_two_sweeps_may_wait_for_time(tokens: int) -> None:
    state = world(PAGES, sweep_tokens=8).workers["w0"].state
    state.apply(offline("o", [2] * tokens, 9), 0.0)
    assert (reported(state).rows > 0) == (tokens < 8 * AHEAD)
    assert state.plan(0.0) is not None
    assert reported(state).rows == 6, "a sweep of it is planned"
