"""The time of a model step that computes for ``compute`` seconds and reads KV for ``memory`` seconds.

Three back ends, after BlendServe (section "Execution time of a step"): *sequential* does one after the other; with *ideal*
overlap both run at full speed side by side; with *calibrated* overlap they slow each other down. Then a memory-bound
kernel with the share x of the device runs at P(x) of its own speed while dense kernels run at 1 - x. P is NanoFlow's
published measurement on an A100 (efeslab/Nanoflow, autosearch/trace/gemv_interference.csv, Apache-2.0).

The seconds of such a step are the least over x, running both until one ends and the rest of the other alone. P is concave,
so the speeds that two kernels can have together fill a convex polygon, the best x is where both end together, and the
minimum is the largest of a few linear forms, one for each edge of the polygon. So the time is convex and homogeneous: no
division of work into steps takes less than all of it as one step, which makes ``bound`` the fair bound of every order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# (share of the device, speed of a memory-bound kernel), with the two ends that hold by definition
INTERFERENCE = (
    (0.0, 0.0), (0.1, 0.25), (0.2, 0.4), (0.3, 0.5), (0.4, 0.6), (0.5, 0.7),
    (0.6, 0.8), (0.7, 0.85), (0.8, 0.9), (0.9, 0.95), (1.0, 1.0),
)  # fmt: skip
SLIGHT = 1e-9

Edge = tuple[float, float]  # (seconds per second of compute, per second of memory)


def edges(table: Sequence[tuple[float, float]] = INTERFERENCE) -> list[Edge]:
    """Return the linear forms of a table P.

    Raises ValueError unless it goes from (0, 0) to (1, 1), rises and is concave.
    """
    if len(table) < 2 or tuple(table[0]) != (0.0, 0.0) or tuple(table[-1]) != (1.0, 1.0):
        raise ValueError("a table of interference begins with (0, 0) and ends with (1, 1); give both")
    found: list[Edge] = []
    before = float("inf")
    for (x, speed), (next_x, next_speed) in itertools.pairwise(table):
        slope = (next_speed - speed) / (next_x - x) if next_x > x else -1.0
        if not 0.0 <= slope <= before + SLIGHT:
            raise ValueError(
                f"the table of interference is not concave and rising at a share of {next_x:g}; sort or smooth it"
            )
        if slope < before - SLIGHT:  # dense speed 1 - x and memory speed P(x): slope * dense + memory = at on this edge
            at = slope * (1.0 - x) + speed
            found.append((slope / at, 1.0 / at))
        before = slope
    return found


class StepTime:
    """A step-time model.

    forms: the seconds of a step are the largest of these. weights: seconds of reading the parameters once, which compute
    waits for: a step computes for no less.
    """

    __slots__ = ("forms", "weights")

    def __init__(self, forms: Sequence[Edge], weights: float = 0.0) -> None:
        self.forms, self.weights = tuple(forms), weights

    def seconds(self, compute: float, memory: float) -> float:
        """Return the seconds of one step."""
        dense = compute if compute > self.weights else self.weights
        return max([c * dense + m * memory for c, m in self.forms])

    def bound(self, compute: float, memory: float) -> float:
        """Return the least seconds of any steps with this compute and memory time in total; parameters are not counted."""
        return max([c * compute + m * memory for c, m in self.forms])

    def run(self, compute: float, memory: float, growth: float, steps: int) -> float:
        """Return the seconds of ``steps`` steps of equal compute, whose memory time grows by ``growth`` each.

        It is as exact as taking each step by itself: linear between the kinks.
        """
        if steps <= 0:
            return 0.0
        last = memory + growth * (steps - 1)
        first_s, last_s = self.seconds(compute, memory), self.seconds(compute, last)
        chord = 0.5 * (first_s + last_s)
        if steps <= 2 or chord - self.seconds(compute, 0.5 * (memory + last)) <= SLIGHT * chord:
            return steps * chord
        half = steps // 2
        return self.run(compute, memory, growth, half) + self.run(compute, memory + growth * half, growth, steps - half)


def sequential(weights: float = 0.0) -> StepTime:
    """Return the model max(compute, weights) + memory."""
    return StepTime([(1.0, 1.0)], weights)


def ideal(weights: float = 0.0) -> StepTime:
    """Return the model max(compute, weights, memory)."""
    return StepTime([(1.0, 0.0), (0.0, 1.0)], weights)


def calibrated(weights: float = 0.0, table: Sequence[tuple[float, float]] = INTERFERENCE) -> StepTime:
    """Return the model of a table of interference. Raises ValueError, see ``edges``."""
    return StepTime(edges(table), weights)
