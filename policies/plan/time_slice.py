"""The time slice of loading: how long load steps may keep the device between two sweeps.

Running requests should hardly notice. A load is cut into short steps. One is taken after each sweep, and further ones
while they take less than a fraction of the sweep: small loads finish soon, and where sweeps are long loads are quick.
"""

from __future__ import annotations

SHARE = 0.25  # fraction of a sweep that loading adds at most, apart from one step


def time_slice(sweep: float) -> float:
    """Return the seconds for further steps. ``sweep``: seconds of the last sweep."""
    return SHARE * sweep
