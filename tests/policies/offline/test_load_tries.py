"""How long an offline job waits for a model that fails to load."""

from __future__ import annotations

from blockwright.policies.offline.load_tries import LoadTries


def test_it_is_tried_again_later_each_time_and_then_no_more() -> None:
    tries = LoadTries()
    assert [tries.failed(number, 5.0) for number in range(1, 9)] == [5.0, 10.0, 20.0, 40.0, 80.0, None, None, None]


def test_requests_that_meet_the_same_failure_count_once() -> None:
    tries = LoadTries()
    assert [tries.failed(7, 5.0) for _ in range(100)] == [5.0] * 100
    assert tries.failed(8, 5.0) == 10.0


def test_an_answer_begins_the_count_anew() -> None:
    tries = LoadTries()
    for number in range(1, 8):
        tries.failed(number, 5.0)
    assert tries.failed(8, 5.0) is None
    tries.loaded()
    assert tries.failed(9, 5.0) == 5.0
