"""Event feed of a sweep machine: what a replica elsewhere needs to follow it call by call.

As the event log (``event_log.py``), in fewer words: plans are not told but checked. The replica makes them itself.
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
    """``plan`` was called and made plan ``number`` (0: none); ``check``: ``check_of`` it."""

    now: float
    number: int
    check: int


@dataclass(frozen=True, slots=True)
class Priced:
    """What sweeps cost there, as far as the worker has learned by now."""

    coefficients: Coefficients


FeedEntry = Began | Applied | PlanMade | Committed | Priced


def check_of(plan: SweepPlan) -> int:
    """32 bits of what the plan computes: another number, another plan."""
    return crc32(array("q", [*plan.row, -1, *plan.start, -1, *plan.count, -1, *plan.sample]))


def made(plan: SweepPlan | None, now: float) -> PlanMade:
    """The entry of a plan."""
    return PlanMade(now, 0, 0) if plan is None else PlanMade(now, plan.number, check_of(plan))


def committed(result: SweepResult, now: float) -> Committed:
    """The entry of a result, without what its gateway alone wants to know."""
    if any(result.logprobs) or result.scores:
        scores: list[list[object]] = [[] for _ in result.scores]
        result = SweepResult(result.number, result.tokens, [], scores, result.seconds)  # type: ignore[arg-type]
    return Committed(result, now)
