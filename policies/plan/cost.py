"""What a plan costs, as a pure function of a few measured coefficients.

Used to hold a worker to the pace of another machine (``--set pace=FILE``), and by forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from blockwright.policies.plan.sweep_plan import SweepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Seconds of a sweep = base + step * steps + token * tokens + row * sampled rows + context * positions attended to."""

    base: float = 0.0
    step: float = 0.0
    token: float = 0.0
    row: float = 0.0
    context: float = 0.0

    @classmethod
    def from_table(cls, table: Any) -> Coefficients:
        """From parsed JSON: an object with these names and seconds. Raises ValueError with a sentence."""
        names = [f.name for f in fields(cls)]
        if not isinstance(table, dict):
            raise ValueError(f"a pace table is an object with some of: {', '.join(names)}")
        for name, value in table.items():
            if name not in names:
                raise ValueError(f"the pace table has {name!r}; it may have: {', '.join(names)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
                raise ValueError(f"{name} in the pace table is {value!r}; give seconds, 0 or more")
        return cls(**table)


def cost(plan: SweepPlan, coefficients: Coefficients) -> float:
    """Seconds that a sweep takes."""
    attended = sum(n * start + n * (n + 1) // 2 for start, n in zip(plan.start, plan.count, strict=True))
    return (
        coefficients.base
        + coefficients.step * len(plan.steps)
        + coefficients.token * plan.tokens
        + coefficients.row * len(plan.sample)
        + coefficients.context * attended
    )
