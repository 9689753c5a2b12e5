"""Throttling by the thresholds of the public code, and how much is lacking."""

from __future__ import annotations

import pytest

from blockwright.policies.overload.demand import PERIOD, READINGS, DemandMonitor, DemandReading, UsageWindow


@pytest.mark.parametrize(
    ("used", "waiting", "throttles"),
    [(95, 5, True), (95, 4, False), (94, 90, False), (100, 0, True), (99, 0, False), (96, 30, True)],
)
def test_an_instance_throttles_when_it_is_nearly_full_and_more_waits_than_is_free(
    used: int, waiting: int, throttles: bool
) -> None:
    monitor = DemandMonitor()
    monitor.read(0.0, {"w0": DemandReading(used=used, total=100, waiting=waiting), "w1": DemandReading(used=0, total=100)})
    assert monitor.throttling() == (["w0"] if throttles else [])


def test_what_lacks_is_counted_at_each_instance() -> None:
    """Free pages of one are of no use to what waits at another; an instance that is full lacks a page at least."""
    one = DemandReading(used=96, total=100, head=10, waiting=34)
    full, idle = DemandReading(used=100, total=100), DemandReading(used=10, total=100, waiting=20)
    monitor = DemandMonitor()
    monitor.read(0.0, {"one": one, "full": full, "idle": idle})
    assert monitor.lacking() == {"one": 30, "full": 1, "idle": 0}
    assert (one.demand, one.lacking, idle.lacking) == (106, 30, 0)
    assert monitor.pending
    monitor.read(0.1, {"full": full})
    assert (monitor.lacking(), monitor.pending) == ({"full": 1}, False), "those that are gone do not count"
    monitor.read(0.2, {"idle": idle})
    assert not monitor.pending, "it waits for the next sweep, not for memory"


def test_a_window_slides_over_thirty_readings() -> None:
    window = UsageWindow()
    window.add(0.0, 0.9)
    assert window.rate == 0.0
    for n in range(READINGS):  # the first one falls out
        window.add(1.0 + n * PERIOD, 0.5 - 0.01 * n)
    assert window.rate == pytest.approx(-0.1)
    assert window.expected(2.0) == pytest.approx(0.5 - 0.01 * (READINGS - 1) - 0.2)


def test_an_instance_about_to_throttle_counts_only_with_a_horizon_and_a_full_window() -> None:
    for horizon, readings, throttles in ((0.0, READINGS, False), (1.0, READINGS, True), (1.0, READINGS - 1, False)):
        monitor = DemandMonitor(horizon=horizon)
        for n in range(readings):
            monitor.read(n * PERIOD, {"w0": DemandReading(used=600 + 10 * n, total=1000)})
        assert bool(monitor.throttling()) is throttles, (horizon, readings)
