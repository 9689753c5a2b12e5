"""Figures of the worker: tokens and seconds of sweeps, memory, load, counters, and what passes to other workers."""

from __future__ import annotations

import os
from bisect import bisect_left

from ...policies.plan.coefficients import Coefficients
from ...policies.plan.fit import OnlineFit
from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.prediction.load import used_blocks
from ...policies.sweep.columns import Columns, Place
from ...policies.sweep.events import CostsLearned
from ...policies.sweep.local_routes import LocalRoutes
from ...policies.sweep.segments import Segment
from ...policies.sweep.state import SweepState
from .messages import SegmentRows, WorkerConfig, WorkerStatus

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class SegmentFigures:
    """Rows of each segment of the families that are served now, summed over this worker's life."""

    def __init__(self) -> None:
        self._version = 0  # of the routes that ``_segments`` are of
        self._segments: dict[int, Segment] = {}  # by the number of the run
        self._counts: dict[Segment, list[int]] = {}  # sweeps, rows

    def record(self, plan: SweepPlan, routes: LocalRoutes) -> None:
        """Count the rows of a plan that has run, a row with drafts once."""
        if routes.version != self._version:
            self._version = routes.version
            self._segments = {routes.number(run): segment for run, segment in routes.segments().items()}
            now = dict.fromkeys(self._segments.values())
            self._counts = {segment: self._counts.get(segment, [0, 0]) for segment in now}
        if not self._segments:
            return
        passed: dict[Segment, int] = {}
        for step in plan.steps:
            segment = self._segments.get(step.run)
            if segment is not None and step.place <= 0:
                passed[segment] = passed.get(segment, 0) + len(step.batch)
        for segment, count in passed.items():
            counts = self._counts[segment]
            counts[0] += 1
            counts[1] += count

    def view(self) -> list[SegmentRows]:
        """Return the segments, those of a family by depth."""
        return [SegmentRows(*segment, sweeps, rows) for segment, (sweeps, rows) in sorted(self._counts.items())]


class TrafficFigures:
    """Positions of each application whose routes begin here, and activations sent on, over this worker's life.

    ``numerics`` name the type of an activation.
    """

    def __init__(self, numerics: str) -> None:
        self._value_bytes = 2 if "bfloat16" in numerics else 4
        self._passages: dict[str, list[int]] = {}  # application -> sweeps, positions
        self._sent: dict[tuple[str, int, str], list[int]] = {}  # (application, depth, worker) -> sweeps, positions, bytes

    def record(self, plan: SweepPlan, batch: list[int], rows: Columns) -> None:
        """Count a plan that has run and has not ended. ``batch``: the sequence of each batch row."""
        passed: dict[str, int] = {}
        for s, count in zip(batch, plan.count, strict=True):
            if rows.place[s] != Place.GUEST:  # its home counts it
                name = rows.route[s].route.application
                passed[name] = passed.get(name, 0) + count
        for name, positions in passed.items():
            counts = self._passages.setdefault(name, [0, 0])
            counts[0] += 1
            counts[1] += positions
        for departure in plan.departures:
            local = rows.route[batch[departure.batch[0]]]
            positions = sum([plan.count[i] for i in departure.batch])
            key = local.route.application, local.route.hops[local.hop].last, departure.worker
            sent = self._sent.setdefault(key, [0, 0, 0])
            sent[0] += 1
            sent[1] += positions
            sent[2] += positions * departure.width * self._value_bytes

    @property
    def beat(self) -> dict[str, object]:
        """The part of a heartbeat about traffic; empty before the first sweep."""
        if not self._passages and not self._sent:
            return {}
        sent = [[*key, *counts] for key, counts in self._sent.items()]
        return {"traffic": {"passages": {name: [*counts] for name, counts in self._passages.items()}, "sent": sent}}


class SweepFigures:
    """Sums over this worker's life."""

    def __init__(self, profile: Coefficients | None = None) -> None:
        self._profiled = profile is not None
        self._counts = [0] * (len(BOUNDS) + 1)
        names = ("sweep_tokens", "sweep_seconds", "kernel_seconds", "plan_seconds", "drawn_on_host")
        self._sums = dict.fromkeys(names, 0.0)
        self._costs = OnlineFit(profile) if profile is not None else None
        self._segments = SegmentFigures()

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

        Only a machine that forms microbatches, fills sweeps with offline rows, drafts, or parts sweeps by tiers uses costs.
        """
        self._note(plan, result)
        parts = state.parts
        self._segments.record(plan, parts.routes)
        wanted = parts.queue.offline or parts.looks_ahead or len(parts.drafts) or parts.weighs_turns
        costs = self.costs if wanted else None
        return [] if costs is None or costs == state.config.costs else [CostsLearned(costs)]

    def _note(self, plan: SweepPlan, result: SweepResult) -> None:
        sums = self._sums
        sums["sweep_seconds"] += result.seconds
        sums["kernel_seconds"] += result.kernel_seconds
        sums["drawn_on_host"] += result.on_host
        if not plan.row:
            return
        tokens = plan.tokens
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        sums["sweep_tokens"] += tokens
        if self._costs is not None:
            self._costs.record(plan, result.seconds)

    @property
    def segments(self) -> list[SegmentRows]:
        return self._segments.view()

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


def status_of(
    config: WorkerConfig,
    state: SweepState,
    incarnation: int,
    numerics: str,
    lateness: float,
    figures: dict[str, float],
    segments: list[SegmentRows],
    slow: str,
) -> WorkerStatus:
    """Return the worker's status.

    ``lateness``: see ``Device``. ``figures`` are counters of its sweeps. ``slow`` is the reason why it computes slowly, or
    "".
    """
    memory, kv = state.parts.memory, used_blocks(state.parts.memory, 1)
    counters = {**state.counters, **figures}
    counters |= {"cached_pages": memory.pages.cached, "pages_shared_now": memory.pages.shared_now()}
    counters |= {"redundant_pages": len(memory.pages.redundant)}
    counters |= {"hidden_pages": state.hidden_pages, "hidden_bytes": memory.pages.hidden_bytes}
    return WorkerStatus(
        name=config.name,
        incarnation=incarnation,
        pid=os.getpid(),
        device=config.worker.device,
        numerics=numerics,
        budget=memory.total_bytes,
        parameters=memory.parameter_bytes,
        kv=kv,
        cached=memory.total_bytes - memory.parameter_bytes - memory.grammar_bytes - memory.free_bytes - kv,
        free=memory.free_bytes,
        other=memory.grammar_bytes or memory.grammars.nbytes,
        components=memory.residence.components,
        waiting=state.awaiting,
        running=state.running,
        sweep=state.number,
        sweep_age=lateness,
        counters={name: float(value) for name, value in counters.items()},
        kv_by_tenant=memory.pages.accounts.all_held(),
        served_by_tenant=dict(state.parts.queue.share.served),
        kv_cap_hits=dict(memory.cap_hits),
        parameters_by_application=memory.residence.bytes_by_holder(),
        # expensive: it looks at every tensor of every application
        left_alone=memory.left_alone() if config.on_demand else {},
        kv_by_application=state.kv_by_application(),
        segments=segments,
        slow=slow,
    )
