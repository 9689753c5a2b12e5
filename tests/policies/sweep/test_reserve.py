"""What offline sequences leave free, in numbers: a share of rows and of memory, and cached pages of online requests."""

from __future__ import annotations

import pytest

from blockwright.policies.sweep.reserve import alone, reserved_rows, reserved_slots, withheld_slots
from blockwright.policies.sweep.state import SweepState

from .offline_world import commit, offline, online, world

LAYERS = 2  # of the base: a page of a sequence is so many slots


def ended(state: SweepState) -> None:
    while (plan := state.plan(0.0)) is not None:
        commit(state, plan)


@pytest.mark.parametrize(("rows", "kept"), [(1, 0), (2, 1), (8, 1), (16, 2), (64, 8)])
def test_an_eighth_of_the_rows_is_kept_free_and_at_least_one_where_there_are_two(rows: int, kept: int) -> None:
    assert reserved_rows(world(max_rows=rows).workers["w0"].state.parts) == kept


@pytest.mark.parametrize(
    ("pages", "tokens", "kept"), [(80, 32, 10), (160, 32, 20), (160, 8, 2 * (8 + 8) // 4), (400, 32, 2 * (32 + 8) // 4)]
)
def test_two_sweeps_of_pages_are_kept_free_or_an_eighth_of_the_memory(pages: int, tokens: int, kept: int) -> None:
    state = world(pages, sweep_tokens=tokens).workers["w0"].state
    assert [*reserved_slots(state.parts).values()] == [kept * LAYERS]
    assert withheld_slots(state.parts) == reserved_slots(state.parts), "nothing is cached"


def test_cached_pages_of_online_requests_are_withheld_up_to_a_quarter_of_the_memory() -> None:
    state = world(160).workers["w0"].state
    (reserve,) = reserved_slots(state.parts).values()
    for number, pages in enumerate((10, 20, 30, 40, 40, 40)):
        state.apply(online(f"a{number}", [number] * 40, 1), 0.0)
        ended(state)
        (withheld,) = withheld_slots(state.parts).values()
        assert withheld - reserve == LAYERS * pages
    state.apply(offline("o", [99] * 40, 1), 0.0)
    ended(state)
    assert [*withheld_slots(state.parts).values()] == [withheld], "not of offline ones"


def test_pages_of_offline_requests_are_not_withheld() -> None:
    state = world(160).workers["w0"].state
    state.apply(offline("o", [99] * 40, 1), 0.0)
    ended(state)
    assert withheld_slots(state.parts) == reserved_slots(state.parts)


def test_one_sequence_is_alone_until_another_waits_or_runs() -> None:
    state = world().workers["w0"].state
    assert alone(state.parts)
    state.apply(offline("o", [1] * 4, 9), 0.0)
    assert alone(state.parts)
    state.apply(offline("p", [2] * 4, 9), 0.0)
    assert not alone(state.parts)
    state.plan(0.0)
    assert not alone(state.parts)
