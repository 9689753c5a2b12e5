"""The order of steps in a plan that draws drafts with a lower tier: a position at a time below the exit, then all above it.

Rows whose drafts are drawn in the plan (*drafting* rows) pass the runs below their exit once for each of their positions.
After each but the last, the head of the exit draws the draft that the next position reads. All other rows join the first
of these passes. Above the exit the verified positions run together, on the hidden states that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..model.runs import Run
from .local_routes import LocalRoutes

DraftStep = tuple[int, Run, list[int], int, bool]  # number of the run, the run, batch rows, and as in ``Step``: place, draft


def ordered(
    steps: Mapping[int, tuple[Run, list[int]]], exits: Mapping[int, Run], routes: LocalRoutes, counts: Sequence[int]
) -> Iterator[DraftStep]:
    """Yield the steps in their order.

    Args:
        steps: the runs that rows pass, by number, with all their batch rows.
        exits: the exit's head of each drafting batch row.
        routes: they have the numbers of the heads.
        counts: the number of positions of each batch row.
    """
    deepest = max([head.depth for head in exits.values()])
    lower: list[tuple[int, Run, list[int]]] = []  # runs below an exit, with their drafting rows
    last: list[DraftStep] = []
    for number, (run, rows) in sorted(steps.items(), key=lambda item: (item[1][0].depth, item[0])):
        first = [i for i in rows if run.depth < (exits[i].depth if i in exits else deepest)]
        if first:
            yield number, run, first, 0, False
        if drafting := [i for i in first if i in exits]:
            lower.append((number, run, drafting))
        if len(first) < len(rows):
            last.append((number, run, [i for i in rows if i not in first], -1, False))
    for place in range(max([counts[i] for i in exits])):
        if place:
            for number, run, rows in lower:
                if left := [i for i in rows if counts[i] > place]:
                    yield number, run, left, place, False
        heads: dict[int, tuple[Run, list[int]]] = {}
        for i, head in exits.items():
            if counts[i] > place + 1:
                heads.setdefault(routes.number(head), (head, []))[1].append(i)
        for number, (head, rows) in heads.items():
            yield number, head, rows, place, True
    yield from last
