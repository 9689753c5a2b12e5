import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.runtime.base.mailbox import Mailbox


@given(st.lists(st.tuples(st.integers(), st.booleans())))
def test_urgent_first_and_in_order_within_a_lane(messages):
    box = Mailbox(1000)
    for number, urgent in messages:
        assert box.put(number, urgent=urgent)
    taken = [box.take() for _ in messages]
    assert taken == [n for n, urgent in messages if urgent] + [n for n, urgent in messages if not urgent]
    assert box.take() is None


def test_the_bound_is_per_lane_and_tested_before_entry():
    box = Mailbox(2)
    assert [box.put(i) for i in range(3)] == [True, True, False]
    assert [box.put(i, urgent=True) for i in range(10, 13)] == [True, True, False]
    assert len(box) == 4
    assert box.drain() == [10, 11, 0, 1]
    assert len(box) == 0
    assert box.put(5)


def test_a_mailbox_for_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Mailbox(0)
