"""A worker's clock on another machine: the shortest way counts, drift is followed, and one machine has one clock."""

from __future__ import annotations

from blockwright.policies.prediction.worker_clock import EPOCH, WorkerClock


def test_on_one_machine_there_is_one_clock() -> None:
    clock = WorkerClock()
    assert clock.of_worker(7.0) == 7.0, "nothing was heard"
    clock.hear(6.99, 7.0)
    assert clock.of_worker(7.5) == 7.5


def test_the_shortest_way_is_the_difference() -> None:
    clock = WorkerClock()
    for way in (0.3, 0.01, 0.2):
        clock.hear(1000.0, 5.0 + way)
    assert clock.of_worker(6.0) == 6.0 - (5.01 - 1000.0)


def test_drift_is_followed_within_two_epochs() -> None:
    clock = WorkerClock()
    clock.hear(1000.0, 0.0)
    for epoch in range(1, 4):
        now = epoch * (EPOCH + 1.0)
        clock.hear(1000.0 + now - 0.1 * epoch, now)
    assert abs(clock.of_worker(now) - (1000.0 + now - 0.2)) < 1e-6, "the way of the last two"
