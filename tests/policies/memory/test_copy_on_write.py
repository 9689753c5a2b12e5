"""Forks of a list go their own ways, share what none has written since, and copy a block when one does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.memory.copy_on_write import BLOCK, CopyOnWriteList


@given(st.integers(0, 1000), st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]))
def test_forks_are_lists_that_go_their_own_ways(seed: int, size: int) -> None:
    chance = random.Random(seed)
    sides = [(CopyOnWriteList(range(size)), list(range(size)))]
    for step in range(1000):
        column, outcome = chance.choice(sides)
        if not outcome or chance.random() < 0.5:
            column.append(step)
            outcome.append(step)
        else:
            place = chance.randrange(len(outcome))
            assert column[place] == outcome[place]
            column[place] = outcome[place] = step
        if chance.random() < 0.01 and len(sides) < 6:
            sides.append((column.fork(), outcome.copy()))
    for column, outcome in sides:
        assert list(column) == outcome
        assert len(column) == len(outcome)
        column.check()


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("first", [True, False])
def test_a_write_after_a_fork_copies_one_block_once(place: int, first: bool) -> None:
    values = [object() for _ in range(2 * BLOCK + 1)]
    one = CopyOnWriteList(values)
    other = one.fork()
    writer, reader = (one, other) if first else (other, one)
    writer[place] = value = object()
    copied = writer._blocks[place // BLOCK]
    writer[place] = value
    assert writer._blocks[place // BLOCK] is copied
    shared = [a is b for a, b in zip(one._blocks, other._blocks, strict=True)]
    assert [number for number, same in enumerate(shared) if not same] == [place // BLOCK]
    assert list(reader) == values
    one.check()
    other.check()


def test_an_entry_that_is_not_there_is_no_entry_of_another_block() -> None:
    column = CopyOnWriteList(range(BLOCK))
    with pytest.raises(IndexError):
        column[BLOCK]
    with pytest.raises(IndexError):
        column[BLOCK] = 1
