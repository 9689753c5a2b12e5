from __future__ import annotations

import pytest

from blockwright.policies.cluster.head_succession import AwakeTime, SilenceCount, doubts, next_epoch, redial_delay


def test_epochs_grow_whatever_the_clock_says() -> None:
    assert next_epoch(1_700_000_000.9, 0) == 1_700_000_000
    assert next_epoch(1_700_000_000.9, 1_700_000_005) == 1_700_000_006
    assert next_epoch(-3.0, 0) == 1


def test_a_head_is_looked_for_at_once_and_then_less_and_less_often() -> None:
    assert [redial_delay(tries) for tries in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert redial_delay(10_000) == 0.5


@pytest.mark.parametrize(
    ("missing", "members", "doubtful"),
    [(0, 0, False), (1, 1, False), (1, 2, False), (2, 2, True), (2, 3, True), (2, 4, False), (3, 4, True), (3, 6, False)],
)
def test_a_head_doubts_itself_when_most_are_missing(missing: int, members: int, doubtful: bool) -> None:
    assert doubts(missing, members) is doubtful


def test_silence_is_counted_from_the_last_sign() -> None:
    count = SilenceCount(5.0)
    assert count.add(5.0, 0.25) == 0.25
    assert count.add(5.0, 0.5) == 0.75
    assert count.add(6.0, 0.25) == 0.25


def test_time_asleep_hardly_counts() -> None:
    awake = AwakeTime(10.0, 0.25)
    assert awake.step(10.25) == 0.25
    assert awake.step(40.0) == 0.375
    assert awake.step(40.25) == 0.25
