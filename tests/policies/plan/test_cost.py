"""The price of a plan, and what a pace table may hold."""

from __future__ import annotations

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import KNEE, PlanCost, cost
from blockwright.policies.plan.sweep_plan import Step, SweepPlan
from blockwright.policies.requests.admission import admit, concurrent

SECONDS = {
    "base": 1.0,
    "step": 2.0,
    "read": 4.0,
    "token": 8.0,
    "beyond": 16.0,
    "row": 32.0,
    "context": 64.0,
    "prefill": 128.0,
}
SIZES = {"parameters": 100, "kv": 8}


def plan_of(*batch: tuple[int, int], sample: int = 1) -> SweepPlan:
    """(start, count) of each row; the last ``sample`` rows are sampled. A body of 80 bytes and a head of 20."""
    start, count = (list(column) for column in zip(*batch, strict=True))
    rows = list(range(len(batch)))
    drawn = rows[len(rows) - sample :]
    steps = [Step(0, rows, [], 80, 8), Step(1, drawn, [], 20, 0, True)]
    return SweepPlan(1, row=rows, start=start, count=count, sample=drawn, steps=steps)


def test_every_coefficient_counts_its_own() -> None:
    """Without sizes a sweep is one pass."""
    plan = plan_of((10, 1), (0, 9))
    expected = 1 + 2 * 2 + 4 + 8 * 10 + 16 * (10 - KNEE) + 32 + 64 * 11 + 128 * 45
    assert cost(plan, Coefficients.from_table(SECONDS)) == expected
    assert cost(SweepPlan(1), Coefficients.from_table(SECONDS)) == 1, "only memory is mapped"


def test_runs_count_by_their_size() -> None:
    """The head computes what is sampled, and reads no KV; a run that some rows pass attends for these."""
    plan = plan_of((10, 1), (0, 9))
    body = 0.8 * (4 + 8 * 10 + 16 * 2) + 64 * 11 + 128 * 45
    whole = 1 + 2 * 2 + 32 + body + 0.2 * (4 + 8)
    assert cost(plan, Coefficients.from_table(SECONDS | SIZES)) == pytest.approx(whole)
    plan.steps.append(Step(2, [1], [], 50, 4))
    assert cost(plan, Coefficients.from_table(SECONDS | SIZES)) == pytest.approx(
        whole + 2 + 0.5 * (4 + 8 * 9 + 16) + 0.5 * 128 * 45
    )


@pytest.mark.parametrize("sizes", [{}, SIZES])
def test_several_sweeps_cost_what_each_of_them_does(sizes: dict[str, float]) -> None:
    coefficients = Coefficients.from_table(SECONDS | sizes)
    rows = [(10 + row, 1) for row in range(12)]
    each = [cost(plan_of(*[(start + n, 1) for start, _ in rows], sample=12), coefficients) for n in range(7)]
    plan = plan_of(*rows, sample=12)
    assert cost(plan, coefficients, sweeps=7) == pytest.approx(sum(each))
    assert [PlanCost(plan, coefficients).later(n) for n in range(7)] == each, "bit by bit"


@pytest.mark.parametrize(
    "table",
    [[1], {"tokens": 1.0}, {"base": -1}, {"base": True}, {"base": "fast"}, {"kv": 8}, {"coefficients": {"base": "fast"}}],
)
def test_a_wrong_pace_table_is_a_sentence(table: object) -> None:
    with pytest.raises(ValueError, match="pace table"):
        Coefficients.from_table(table)


def test_a_device_profile_is_a_pace_table() -> None:
    assert Coefficients.from_table({"schema": 1, "coefficients": {"base": 2.0}, "links": {}}) == Coefficients(base=2.0)


def test_admission_names_both_numbers() -> None:
    assert admit(10, 10) is None
    assert "11 tokens" in str(admit(11, 10))
    assert "memory for 10" in str(admit(11, 10))


def test_concurrent_requests() -> None:
    assert concurrent([4096, 6000], 2048, 100) == 4
    assert concurrent([1 << 62, 2047], 2048, 100) == 100
