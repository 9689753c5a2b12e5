"""Traffic of this worker: positions of each application whose routes begin here, and activations sent to other workers."""

from __future__ import annotations

from ...policies.plan.sweep_plan import SweepPlan
from ...policies.sweep.columns import Columns, Place


class TrafficFigures:
    """Sums over this worker's life. ``numerics`` name the type of an activation."""

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
