"""The price of a plan, and what a pace table may hold."""

from __future__ import annotations

import pytest

from blockwright.policies.plan.cost import Coefficients, cost
from blockwright.policies.plan.sweep_plan import Step, SweepPlan
from blockwright.policies.requests.admission import admit, concurrent


def test_every_coefficient_counts_its_own() -> None:
    plan = SweepPlan(1, row=[0, 1], start=[10, 0], count=[1, 3], sample=[0], steps=[Step(0, [0, 1]), Step(1, [0])])
    ones = {"base": 1.0, "step": 10.0, "token": 100.0, "row": 1000.0, "context": 10000.0}
    assert cost(plan, Coefficients.from_table(ones)) == 1 + 20 + 400 + 1000 + 10000 * (11 + 6)


@pytest.mark.parametrize("table", [[1], {"tokens": 1.0}, {"base": -1}, {"base": True}, {"base": "fast"}])
def test_a_wrong_pace_table_is_a_sentence(table: object) -> None:
    with pytest.raises(ValueError, match="pace table"):
        Coefficients.from_table(table)


def test_admission_names_both_numbers() -> None:
    assert admit(10, 10) is None
    assert "11 tokens" in str(admit(11, 10))
    assert "room for 10" in str(admit(11, 10))


def test_concurrent_requests() -> None:
    assert concurrent([4096, 6000], 2048, 100) == 4
    assert concurrent([1 << 62, 2047], 2048, 100) == 100
