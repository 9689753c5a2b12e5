"""The forecast benchmark measures what it says: so many sequences that run and wait, and forecasts that end."""

from __future__ import annotations

import forecast
import pytest


def test_the_worker_is_as_full_as_the_case_says() -> None:
    state, plan, targets = forecast.worker(8, 5, 0)
    assert (state.running, state.waiting, len(plan.sample)) == (8, 5, 8)
    assert len({target.request for target in targets}) == 4


@pytest.mark.nightly
def test_forecasts_are_timed_and_equal_the_machines() -> None:
    found = forecast.measure(4, 2, 10)
    assert sorted(found) == ["first_ms", "machine_ms", "next_ms", "p50_ms", "p99_ms", "sweeps"]
    assert min(found.values()) > 0
