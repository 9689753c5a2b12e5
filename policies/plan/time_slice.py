"""Time slice: how long the steps of a load may keep the device between two sweeps, so that running requests hardly notice.

A load is cut into short steps. One is taken after each sweep, and further ones while they take less than a part of that:
what is small comes soon, and where sweeps are long loads are quick.
"""

from __future__ import annotations

SHARE = 0.25  # of a sweep: how much longer loading makes it, at most and but for a step


def time_slice(sweep: float) -> float:
    """Seconds for further steps. ``sweep``: those that the last sweep took."""
    return SHARE * sweep
