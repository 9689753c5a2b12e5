"""The event feed of a sweep machine: all that a replica elsewhere needs to follow it call by call.

Like the event log (``event_log.py``), but shorter: plans are not sent but checked. The replica makes them itself.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from zlib import crc32

from ..plan.coefficients import Coefficients
from ..plan.sweep_plan import SweepPlan, SweepResult
from .event_log import Applied, Began, Committed


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A call of ``plan`` that made plan ``number`` (0: none). ``check``: its ``check_of``."""

    now: float
    number: int
    check: int


@dataclass(frozen=True, slots=True)
class Priced:
    """The cost of sweeps, as far as the worker has learned it."""

    coefficients: Coefficients


FeedEntry = Began | Applied | PlanMade | Committed | Priced


def check_of(plan: SweepPlan) -> int:
    """Return 32 bits of what the plan computes: different number, different plan."""
    return crc32(array("q", [*plan.row, -1, *plan.start, -1, *plan.count, -1, *plan.sample]))


def made(plan: SweepPlan | None, now: float) -> PlanMade:
    """Return the entry of a plan."""
    return PlanMade(now, 0, 0) if plan is None else PlanMade(now, plan.number, check_of(plan))


def committed(result: SweepResult, now: float) -> Committed:
    """Return the entry of a result, without the parts that only its gateway needs."""
    if any(result.logprobs) or result.scores or result.vectors:
        scores: list[list[object]] = [[] for _ in result.scores]
        result = SweepResult(
            result.number,
            result.tokens,
            [],
            scores,  # type: ignore[arg-type]
            result.seconds,
            verified=result.verified,
            forced=result.forced,
        )
    return Committed(result, now)
