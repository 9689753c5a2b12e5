"""The view of dropped and restored parameters: groups, changes and their counts as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..overload.coordinator import GroupState
from .dropped_group import ParameterChange
from .parameter_drops import ParameterDrops
from .residency import Served

CHANGES = ("drop", "trim", "restore", "break off", "rescue")
FAILURES = ("worker_died", "no_room", "load_failed", "lacking")
TOTALS = ("dropped_bytes", "stale_requests", "copied_bytes", "recomputed_tokens", "stall_seconds")


def overload_view(
    drops: ParameterDrops, served: Mapping[str, Served], workers: Iterable[str], now: float, wall: float
) -> dict[str, Any]:
    """Return the part of the cluster's view about parameter drops. ``wall``: seconds since the epoch at ``now``."""
    groups = {
        group.name: {
            "model": ", ".join(served[name].application.served_as for name in group.applications),
            "state": group.stage.group_state.value,
            "step": group.stage.value,
            "stages": [{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in group.hops],
        }
        for group in drops.groups.values()
    }
    states = {name: {"state": GroupState.NORMAL.value, "group": ""} for name in workers}
    for name, group in drops.groups.items():
        states |= {worker: {"state": group.stage.group_state.value, "group": name} for worker in group.workers}
    return {
        "workers": states,
        "groups": groups,
        "changes": [_change(one, wall - now) for one in drops.changes],
        "counts": {name: drops.counts.get(name, 0) for name in CHANGES},
        "failures": {name: drops.failures.get(name, 0) for name in FAILURES},
        "totals": {name: drops.totals.get(name, 0) for name in TOTALS},
    }


def _change(one: ParameterChange, epoch: float) -> dict[str, Any]:
    until = {name: None if at is None else round(at - one.at, 4) for name, at in (("left", one.left), ("ended", one.ended))}
    return {
        "at": round(epoch + one.at, 3),
        "what": one.what,
        "group": one.group,
        "why": one.why,
        "bytes": one.nbytes,
        "seconds": until["ended"],
        "seconds_until_left": until["left"],
        "requests": one.requests,
        "copied": sum(figures.copied for figures in one.figures),
        "copied_bytes": sum(figures.nbytes for figures in one.figures),
        "recomputed": sum(figures.recomputed for figures in one.figures),
        "stall": sum(figures.stall_sum for figures in one.figures),
        "stall_worst": max((figures.stall_worst for figures in one.figures), default=0.0),
    }
