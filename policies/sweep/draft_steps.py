"""The order of steps in a plan that draws drafts: drafting rows a position at a time, then all positions that are verified.

Rows whose drafts a lower tier draws pass the runs below its exit once for each of their positions, and rows of draft models
all their runs once for each draft. After each of these passes, the head of the exit or of the draft model draws the draft
that the next position reads; after the last position of a row with a tier there is none to draw. Other rows join the first
pass of a run, if they have missed none before it, but the targets of draft models wait for all drafts. The verified
positions pass what is left together: above an exit, on the hidden states that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model.runs import Run
from ..plan.sweep_plan import SweepPlan
from .local_routes import LocalRoutes

DraftStep = tuple[int, Run, list[int], int, bool]  # number of the run, the run, batch rows, and as in ``Step``: place, draft


def ordered(
    plan: SweepPlan, steps: Mapping[int, tuple[Run, list[int]]], heads: Mapping[int, Run], routes: LocalRoutes
) -> Iterator[DraftStep]:
    """Yield the steps in their order.

    Args:
        plan: the plan, with all columns but the steps.
        steps: the runs that rows pass, by number, with all their batch rows.
        heads: the head that draws the drafts of each drafting batch row.
        routes: they have the numbers of the heads.
    """
    passes = {i: plan.count[i] for i in plan.drafting}
    draws = {i: count - 1 for i, count in passes.items()}
    for row in plan.draft_rows:
        passes[row.batch] = draws[row.batch] = plan.count[row.batch] - row.lead + 1
    waiting = {row.target for row in plan.draft_rows}  # batch rows that have missed a first pass, or join none
    first: list[tuple[int, Run, list[int]]] = []  # runs with drafting rows, with these rows
    last: list[DraftStep] = []
    for number, (run, rows) in sorted(steps.items(), key=lambda item: (item[1][0].depth, item[0])):
        drafting = [i for i in rows if i in heads and run.depth < heads[i].depth]
        joining = [i for i in rows if i in drafting or (i not in heads and i not in waiting)] if drafting else []
        if drafting:
            yield number, run, joining, 0, False
            first.append((number, run, drafting))
        if len(joining) < len(rows):
            later = [i for i in rows if i not in joining]
            waiting.update(later)
            last.append((number, run, later, -1, False))
    for place in range(max(passes.values())):
        if place:
            for number, run, rows in first:
                if left := [i for i in rows if passes[i] > place]:
                    yield number, run, left, place, False
        drawing: dict[int, tuple[Run, list[int]]] = {}
        for i, head in heads.items():
            if draws[i] > place:
                drawing.setdefault(routes.number(head), (head, []))[1].append(i)
        for number, (head, rows) in drawing.items():
            yield number, head, rows, place, True
    yield from last
