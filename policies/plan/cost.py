"""The cost model of a sweep: linear, with few coefficients, which ``blockwright profile`` measures.

A product with n rows takes the longer of reading the parameters and multiplying them: constant for few rows, then linear
in the rows (the roofline of Williams et al., CACM 2009). As a piecewise line it stays linear in its coefficients, so that
nonnegative least squares fits it (``fit.py``). A decoding row reads all of its KV for one token; a prompt's tokens read it
together. It is used to hold a worker to the pace of another machine (``--set pace=FILE``), by forecasts and by the
simulator.
"""

from __future__ import annotations

from .coefficients import Coefficients
from .sweep_plan import Step, SweepPlan

KNEE = 8  # rows of a product up to which reading parameters dominates


def cost(plan: SweepPlan, coefficients: Coefficients, sweeps: int = 1) -> float:
    """Return the seconds of a sweep, or of ``sweeps`` decoding sweeps from this one on.

    Each of these has one position more behind every row than the one before.
    """
    return PlanCost(plan, coefficients).total(sweeps)


class PlanCost:
    """The cost of a plan and of the sweeps that may follow it: the same rows, each a position further."""

    __slots__ = ("_attending", "_context", "_flat")

    def __init__(self, plan: SweepPlan, coefficients: Coefficients) -> None:
        c = coefficients
        read, token, beyond, prefill, self._attending = _walk(plan, c.parameters, c.kv)
        self._flat = c.base + c.step * len(plan.steps) + c.read * read + c.token * token + c.beyond * beyond
        self._flat += c.row * _drawn(plan) + c.prefill * prefill
        self._context = c.context

    def later(self, sweeps: int) -> float:
        """Return the seconds of the sweep that comes ``sweeps`` sweeps later: bit by bit the cost of its own plan."""
        return self._flat + self._context * sum([share * (near + sweeps * rows) for share, near, rows in self._attending])

    def total(self, sweeps: int) -> float:
        """Return the seconds of ``sweeps`` sweeps together."""
        more = sweeps * (sweeps - 1) // 2
        attended = sum([share * (sweeps * near + more * rows) for share, near, rows in self._attending])
        return sweeps * self._flat + self._context * attended


def features(plan: SweepPlan, parameters: float, kv: float) -> tuple[float, ...]:
    """Return how often each of ``TERMS`` counts, with the sizes of ``Coefficients``."""
    read, token, beyond, prefill, attending = _walk(plan, parameters, kv)
    context = sum([share * near for share, near, _ in attending])
    return 1.0, len(plan.steps), read, token, beyond, _drawn(plan), context, prefill


def _drawn(plan: SweepPlan) -> int:
    """Return the number of tokens that a plan draws, its own drafts included."""
    drafts = [len(step.batch) for step in plan.steps if step.draft] if plan.drafting or plan.draft_rows else []
    return plan.drawn + sum(drafts)


def _walk(plan: SweepPlan, parameters: float, kv: float) -> tuple[float, float, float, float, list[tuple[float, int, int]]]:
    """Return passes, their tokens, tokens beyond the knee, positions that prompts attend to, and figures of runs with KV.

    For each of these runs: its share, the positions that its decoding rows attend to, and the number of these rows.
    """
    rows = len(plan.row)
    every = _attended(plan.start, plan.count)
    steps = plan.steps if parameters or not rows else [Step(0, plan.row, nbytes=1, kv_bytes=1)]
    parameters, kv = parameters or 1.0, kv or 1.0
    read = token = beyond = prefill = 0.0
    attending = []
    for step in steps:
        batch, share = step.batch, step.nbytes / parameters
        tokens, decoding, near, far = every
        if step.head:
            tokens = len(batch) if step.draft else len(batch) + plan.drawn - len(plan.sample)
        elif len(batch) != rows or step.place >= 0:
            tokens, decoding, near, far = _attended(*plan.columns(step))
        read += share
        token += share * tokens
        if tokens > KNEE:
            beyond += share * (tokens - KNEE)
        if step.kv_bytes:
            share = step.kv_bytes / kv
            attending.append((share, near, decoding))
            prefill += share * far
    return read, token, beyond, prefill, attending


def _attended(start: list[int], count: list[int]) -> tuple[int, int, int, int]:
    """Return the tokens of batch rows, the number of one-token rows, and the positions that these and the others attend
    to.
    """
    tokens = sum(count)
    if tokens == len(count):
        return tokens, tokens, sum(start) + tokens, 0
    near = [first + 1 for first, n in zip(start, count, strict=True) if n == 1]
    far = [n * first + n * (n + 1) // 2 for first, n in zip(start, count, strict=True) if n > 1]
    return tokens, len(near), sum(near), sum(far)
