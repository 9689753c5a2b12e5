"""The part of ``/admin/cluster`` about placement: what crosses between workers, and what was relocated because of it."""

from __future__ import annotations

from typing import Any

from ...policies.control.labels import labels as labels_of
from ...policies.control.state import ControllerState

SHOWN = 64  # pairs with most bytes


def placement_view(state: ControllerState, now: float, wall: float) -> dict[str, Any]:
    """Return the view. ``wall``: seconds since the epoch at ``now``.

    A pair is named by the ids of its components, hexadecimal, and by its place: ``before`` is the depth of the second one.
    """
    relocations, labels = state.relocations, labels_of(state.served)
    transfers = list[dict[str, Any]]()
    for worker, one in relocations.traffic.sent():
        if one.application in state.served and len(transfers) < SHOWN:
            parts = state.served[one.application].application.components
            transfers.append(
                {
                    "model": labels[one.application],
                    "before": one.depth,
                    "pair": [part.shared.hex() for part in parts[one.depth - 1 : one.depth + 1]],
                    "worker": worker,
                    "to": one.to,
                    "sweeps": one.sweeps,
                    "positions": one.positions,
                    "bytes": one.nbytes,
                }
            )
    last = relocations.last
    planned = None
    if last is not None:
        planned = {"at": round(wall - now + last.at, 3), "steps": last.steps, "saved": last.saved, "cost": last.cost}
    mode = "fragmentation" if state.placement.by_room else "locality"
    counts = {**relocations.counts, "open": int(relocations.step is not None)}
    return {"mode": mode, "window": relocations.window, "relocations": counts, "last": planned, "transfers": transfers}
