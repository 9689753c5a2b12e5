"""The simulator's benchmark runs what it names, with no request lost."""

from __future__ import annotations

import pytest
import simulation


@pytest.mark.parametrize("case", simulation.CASES)
def test_every_case_is_measured(case: str) -> None:
    changes = [change for change in simulation.CASES[case] if "=1000" not in change]
    found = simulation.measure((*changes, "workload.rate=30"), 30)
    assert sorted(found) == ["times_real_time", "us_per_request"]
    assert min(found.values()) > 0


def test_the_cases_with_a_bar_exist() -> None:
    assert {bar.case for bar in simulation.BARS} <= set(simulation.CASES)
