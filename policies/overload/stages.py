"""Cutting a chain into the stages of a group whose members have parameters already.

Each stage is a contiguous range of components that its member holds and has room for, so that nothing has to be loaded;
the slowest stage is as fast as possible. Two groups are joined by merging their orders of members: of stages that hold
different layers, the earlier one stays the earlier one. Pure; equal inputs give equal cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from ..model.chain import Component, Kind
from ..plan.coefficients import Coefficients
from ..plan.cost import KNEE

NEVER = float("inf")
ROWS, CONTEXT = 64, 1024  # the sweep that stages are balanced for: rows, and positions behind each


def component_seconds(components: Sequence[Component], costs: Coefficients) -> list[float]:
    """Return what each component adds to a decoding sweep of ``ROWS`` rows with ``CONTEXT`` positions each.

    These are the terms of ``policies/plan/cost.py`` that a stage pays by its share of the parameters and of the KV. An
    embedding costs nothing: it is looked up.
    """
    body = costs.parameters or float(sum(c.nbytes for c in components if c.kind is not Kind.EMBEDDING)) or 1.0
    cached = costs.kv or float(sum(c.kv.raw_bytes // c.kv.page_size for c in components if c.kv is not None)) or 1.0
    a_pass = costs.read + costs.token * ROWS + costs.beyond * max(ROWS - KNEE, 0)
    found = []
    for component in components:
        seconds = 0.0 if component.kind is Kind.EMBEDDING else a_pass * component.nbytes / body
        if component.kind is Kind.HEAD:
            seconds += costs.row * ROWS
        if component.kv is not None:
            share = component.kv.raw_bytes // component.kv.page_size / cached
            seconds += costs.context * ROWS * CONTEXT * share
        found.append(seconds)
    return found


def cut(
    first: Sequence[frozenset[int]],
    second: Sequence[frozenset[int]],
    seconds: Sequence[float],
    fits: Callable[[int, int, int], bool],
) -> list[tuple[int, int]]:
    """Return stages for the members of two groups such that the slowest is as fast as possible.

    Args:
        first, second: the depths that each member holds, members in the order of their stages. A member is known by its
            place; members of ``second`` count on behind ``first``.
        seconds: of each component.
        fits: whether a member (its place) has room for the components from a depth on and before another.
    Returns:
        For each stage, the place of its member and the depth behind its range, in order of depth; [] if no cut gives each
        member a range that it holds and has room for.
    """
    end, ahead = len(seconds), [0.0, *accumulate(seconds)]
    best: dict[tuple[int, int, int], tuple[float, int, int]] = {(len(first), len(second), end): (0.0, 0, -end)}

    def solve(i: int, j: int, depth: int) -> float:
        """Return the time of the slowest stage if members from ``i`` and ``j`` on share the components from ``depth`` on."""
        key = i, j, depth
        if key not in best:
            found = NEVER, 0, 0
            for other, held in ((0, first[i : i + 1]), (1, second[j : j + 1])):
                place = len(first) + j if other else i
                for behind in range(depth + 1, end + 1) if held else ():
                    took = ahead[behind] - ahead[depth]
                    if behind - 1 not in held[0] or took > found[0]:
                        break
                    if fits(place, depth, behind):
                        found = min(found, (max(took, solve(i + 1 - other, j + other, behind)), other, -behind))
            best[key] = found
        return best[key][0]

    if solve(0, 0, 0) == NEVER:
        return []
    stages = []
    i = 0
    j = 0
    depth = 0
    while depth < end:
        _, other, behind = best[i, j, depth]
        stages.append((len(first) + j if other else i, -behind))
        i = i + 1 - other
        j = j + other
        depth = -behind
    return stages
