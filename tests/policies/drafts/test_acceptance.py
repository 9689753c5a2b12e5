"""Chances in whole numbers: what was seen, what others saw, and what was long ago."""

from __future__ import annotations

from blockwright.policies.drafts.acceptance import FULL, PRIOR, UNIT, Acceptance
from blockwright.policies.drafts.options import LARGEST


def test_without_rounds_each_draft_stands_in_half_of_them() -> None:
    seen = Acceptance()
    assert seen.chances(3) == [UNIT // 2] * 3
    assert seen.expected(0) == [UNIT]
    assert seen.expected(3)[-1] == UNIT + UNIT // 2 + UNIT // 4 + UNIT // 8


def test_a_round_counts_up_to_the_first_draft_that_fell() -> None:
    seen = Acceptance()
    seen.record(4, 2)
    seen.record(1, 1)
    assert seen.reached[:4] == [2, 2 - 1, 1, 0]
    assert seen.stood[:4] == [2, 1, 0, 0]
    assert seen.chances(1)[0] == (PRIOR * (UNIT // 2) + 2 * UNIT) // (PRIOR + 2)


def test_a_place_that_was_never_reached_is_like_the_one_before_it() -> None:
    """Otherwise rounds would never grow beyond the longest that was tried."""
    seen = Acceptance()
    for _ in range(FULL // 2):
        seen.record(2, 2)
    first, second, third = seen.chances(3)
    assert third == second >= first - 1 > 9 * UNIT // 10


def test_a_sequence_begins_with_what_its_application_saw() -> None:
    others = Acceptance()
    for _ in range(100):
        others.record(2, 2)
    mine = Acceptance(others)
    assert mine.chances(1) == others.chances(1)
    assert mine.chances(1)[0] > 9 * UNIT // 10
    for _ in range(50):
        mine.record(1, 0)
    assert mine.chances(1)[0] < UNIT // 5


def test_what_was_long_ago_counts_less() -> None:
    seen = Acceptance()
    for _ in range(FULL):
        seen.record(1, 1)
    for _ in range(2 * FULL):
        seen.record(1, 0)
    assert seen.reached[0] <= FULL
    assert seen.chances(1)[0] < UNIT // 4


def test_copies_go_on_alike() -> None:
    seen = Acceptance()
    seen.record(LARGEST, LARGEST)
    before = seen.snapshot()
    copies = [seen.fork(None), Acceptance.restore(before, None)]
    for copy in copies:
        copy.record(1, 0)
    assert copies[0].snapshot() == copies[1].snapshot() != before
    assert seen.snapshot() == before
