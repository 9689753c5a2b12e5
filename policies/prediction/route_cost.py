"""The cost model for batches of one route, from sums over their rows: ``PlanCost`` without a plan."""

from __future__ import annotations

from ..model.runs import LocalRoute
from ..plan.coefficients import Coefficients
from ..plan.cost import KNEE


class BatchSums:
    """Sums over the rows of a plan. near: positions that rows of one token attend to. far: positions of longer chunks."""

    def __init__(self, tokens: int, sampled: int, near: int) -> None:
        self.tokens, self.sampled, self.near, self.far = tokens, sampled, near, 0


class RouteCost:
    """The cost model for plans of one route, from sums over their rows."""

    def __init__(self, route: LocalRoute, coefficients: Coefficients) -> None:
        self._c = c = coefficients
        sized = bool(c.parameters)
        self._runs = [(run.nbytes / c.parameters, run.head) for run in route.runs] if sized else [(1.0, False)]
        self._steps, self._heads = len(route.runs), sum(run.head for run in route.runs)
        self._kv = sum(run.kv_bytes for run in route.runs) / c.kv if sized else 1.0

    def flat(self, tokens: int, sampled: int) -> float:
        """Return all costs except the ones that grow with positions."""
        c = self._c
        seconds = c.base + c.step * (self._steps if sampled else self._steps - self._heads) + c.row * sampled
        for share, head in self._runs:
            rows = sampled if head else tokens
            if rows:
                seconds += share * (c.read + c.token * rows + c.beyond * max(0, rows - KNEE))
        return seconds

    def attended(self, near: int, far: int) -> float:
        """Return the cost of positions that decoding rows (``near``) and prompts (``far``) attend to."""
        return self._kv * (self._c.context * near + self._c.prefill * far)
