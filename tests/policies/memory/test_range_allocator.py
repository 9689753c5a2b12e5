"""Ranges are never taken twice, come back whole, and the lowest fit is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.range_allocator import RangeAllocator


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 15)), max_size=60))
def test_no_granule_is_held_twice_and_all_come_back(size: int, steps: list[tuple[bool, int]]) -> None:
    extents = RangeAllocator(size)
    held = list[tuple[int, int]]()
    used = set[int]()
    for take, number in steps:
        if take:
            runs = [s for s in range(size) if not used & set(range(s, s + number)) and s + number <= size]
            start = extents.allocate(number)
            assert start == (runs[0] if runs else None)
            if start is not None:
                held.append((start, number))
                used |= set(range(start, start + number))
        elif held:
            start, length = held.pop(number % len(held))
            extents.give_back(start, length)
            used -= set(range(start, start + length))
        assert extents.free == size - len(used)
    for start, length in held:
        extents.give_back(start, length)
    assert extents.allocate(size) == 0


@pytest.mark.parametrize("extent", [(0, 1), (3, 1), (1, 3), (9, 2), (-1, 1), (1, 0)])
def test_what_is_not_taken_cannot_come_back(extent: tuple[int, int]) -> None:
    extents = RangeAllocator(10)
    assert (extents.allocate(1), extents.allocate(2)) == (0, 1)
    extents.give_back(0, 1)
    with pytest.raises(ValueError, match="not taken"):
        extents.give_back(*extent)


def test_nothing_is_no_range() -> None:
    with pytest.raises(ValueError, match="cannot be taken"):
        RangeAllocator(3).allocate(0)
    assert RangeAllocator(0).allocate(1) is None


def test_a_fork_is_independent() -> None:
    extents = RangeAllocator(10)
    extents.allocate(4)
    copy = extents.fork()
    assert (copy.allocate(6), copy.free, extents.free) == (4, 0, 6)
    copy.give_back(0, 10)
    assert (extents.allocate(6), extents.allocate(1), copy.allocate(10)) == (4, None, 0)
