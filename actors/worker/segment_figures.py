"""Rows of each segment of the served families: how far sweeps are shared by the tiers of a family."""

from __future__ import annotations

from ...policies.plan.sweep_plan import SweepPlan
from ...policies.sweep.local_routes import LocalRoutes
from ...policies.sweep.segments import Segment
from .messages import SegmentRows


class SegmentFigures:
    """Sums over this worker's life, of the families that are served now."""

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
        rows: dict[Segment, int] = {}
        for step in plan.steps:
            segment = self._segments.get(step.run)
            if segment is not None and step.place <= 0:
                rows[segment] = rows.get(segment, 0) + len(step.batch)
        for segment, count in rows.items():
            counts = self._counts[segment]
            counts[0] += 1
            counts[1] += count

    def view(self) -> list[SegmentRows]:
        """Return the segments, those of a family by depth."""
        return [SegmentRows(*segment, sweeps, rows) for segment, (sweeps, rows) in sorted(self._counts.items())]
