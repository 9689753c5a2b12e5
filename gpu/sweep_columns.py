"""Columns of a plan as arrays, and the rows of its steps: which positions of which table rows, and where their tokens lie.

Integers of the plan alone: no token is known here. Legend: N batch rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..policies.plan.sweep_plan import Step, SweepPlan
from .errors import ExecutorError
from .tables import Tables

Ints = NDArray[Any]


@dataclass(slots=True)  # not frozen: made for each step, and freezing would triple the time it takes
class Rows:
    """Batch rows, given by their numbers in the plan.

    Row n computes positions ``start_N[n] .. start_N[n] + count_N[n] - 1`` of table row ``row_N[n]``. Its tokens are
    consecutive in the hidden states of the sweep, from ``offset_N[n]`` on.
    """

    batch: Sequence[int]
    row_N: Ints
    start_N: Ints
    count_N: Ints
    offset_N: Ints

    @property
    def tokens(self) -> int:
        return int(self.count_N.sum())


class SweepColumns:
    """The columns of a plan being executed. ``end_N``: the position behind each batch row's last."""

    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan
        self.row_N, self.start_N, self.count_N = (np.asarray(c, dtype=np.int32) for c in (plan.row, plan.start, plan.count))
        self.end_N = self.start_N + self.count_N
        self.offset_N = np.cumsum(self.count_N, dtype=np.int64) - self.count_N
        self._every = list(range(len(plan.row)))

    def check(self, tables: Tables, max_tokens: int) -> None:
        """Raise ExecutorError for a plan that does not fit the tables, or has more tokens than a sweep may have."""
        plan, longest = self.plan, tables.max_length
        if plan.tokens > max_tokens:
            raise ExecutorError(f"plan {plan.number} has {plan.tokens} tokens, the limit is {max_tokens}; raise max_tokens")
        outside_N = (self.start_N < 0) | (self.end_N > longest) | (self.row_N < 0) | (self.row_N >= tables.rows)
        if (outside_N | (self.count_N < 1)).any():
            raise ExecutorError(
                f"plan {plan.number} has positions beyond {longest} or rows beyond {tables.rows}, or an empty row"
            )

    def rows(self, batch: Sequence[int]) -> Rows:
        """Return all positions of these batch rows."""
        if batch == self._every:  # as almost always, which costs nothing
            return Rows(batch, self.row_N, self.start_N, self.count_N, self.offset_N)
        some = list(batch)
        return Rows(some, self.row_N[some], self.start_N[some], self.count_N[some], self.offset_N[some])

    def rows_of(self, step: Step) -> Rows:
        """Return the rows of a step, which computes a part of drafting and draft rows only."""
        at = self.rows(step.batch)
        if step.place >= 0:
            at.start_N, at.count_N = at.start_N.copy(), at.count_N.copy()
            at.offset_N = at.offset_N.copy()
            drafting_N = np.isin(step.batch, self.plan.drafting)
            at.start_N[drafting_N] += step.place
            at.offset_N[drafting_N] += step.place
            at.count_N[drafting_N] = 1
        if step.place >= 0 and self.plan.draft_rows:
            leads = {row.batch: row.lead for row in self.plan.draft_rows}
            lead_N = np.asarray([leads.get(n, 0) for n in step.batch], dtype=np.int32)
            skipped_N = np.where(lead_N > 0, lead_N + step.place - 1 if step.place else 0, 0)
            at.start_N += skipped_N.astype(at.start_N.dtype)
            at.offset_N += skipped_N
            at.count_N = np.where(lead_N > 0, 1 if step.place else lead_N, at.count_N)
        return at
