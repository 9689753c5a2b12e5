"""Sweep metrics of the worker for ``/metrics``: tokens, seconds, and the error of a device profile."""

from __future__ import annotations

from bisect import bisect_left

from ...policies.plan.coefficients import Coefficients
from ...policies.plan.fit import OnlineFit
from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.sweep.events import CostsLearned
from ...policies.sweep.state import SweepState

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SweepFigures:
    """Sums over this worker's life."""

    def __init__(self, profile: Coefficients | None = None) -> None:
        self._profiled = profile is not None
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sums = {"sweep_tokens": 0.0, "sweep_seconds": 0.0, "kernel_seconds": 0.0, "plan_seconds": 0.0}
        self._costs = OnlineFit(profile) if profile is not None else None

    @property
    def costs(self) -> Coefficients | None:
        """The current costs of sweeps, or None while they are unknown.

        Reading it starts the fit if there is no profile.
        """
        if self._costs is None:
            self._costs = OnlineFit()
        return self._costs.coefficients if self._costs.fitted else None

    @property
    def learned(self) -> Coefficients | None:
        """The current costs of sweeps, without starting the fit."""
        return self._costs.coefficients if self._costs is not None and self._costs.fitted else None

    def planned(self, seconds: float) -> None:
        """Count the time of a call that made a plan, or found none to make."""
        self._sums["plan_seconds"] += seconds

    def swept(self, plan: SweepPlan, result: SweepResult, state: SweepState) -> list[CostsLearned]:
        """Record a plan that has run. Return the costs that the state machine should learn, if they are new.

        Only a machine that forms microbatches, fills sweeps with offline rows, or drafts uses costs.
        """
        self._note(plan, result)
        parts = state.parts
        costs = self.costs if parts.queue.offline or parts.looks_ahead or len(parts.drafts) else None
        return [] if costs is None or costs == state.config.costs else [CostsLearned(costs)]

    def _note(self, plan: SweepPlan, result: SweepResult) -> None:
        sums = self._sums
        sums["sweep_seconds"] += result.seconds
        sums["kernel_seconds"] += result.kernel_seconds
        if not plan.row:
            return
        tokens = plan.tokens
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        sums["sweep_tokens"] += tokens
        if self._costs is not None:
            self._costs.record(plan, result.seconds)

    def counters(self) -> dict[str, float]:
        """Return all counters.

        ``sweeps_up_to_N`` counts sweeps of at most N tokens that no smaller bound counts. The errors of the cost fit are
        included once it is fitted.
        """
        bounds = [*map(str, BOUNDS), "inf"]
        made = {f"sweeps_up_to_{bound}": float(count) for bound, count in zip(bounds, self._counts, strict=True)}
        costs = self._costs
        if costs is None or not costs.fitted:
            return made | self._sums
        drift = {"cost_drift": costs.drift} if self._profiled else {}  # drift is measured from a profile
        return made | self._sums | drift | {"cost_error": costs.error}
