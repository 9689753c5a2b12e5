"""For how many sweeps the same offline rows ride, while all that run decode: so far a forecast may jump.

What rows cost grows with their positions, sweep by sweep; what they may cost beside online rows stays as it is, or grows as
evenly. So rows that fit into the first and into the last of some sweeps fit into all between.
"""

from __future__ import annotations

from ..plan.fit import PLAIN
from .open_plans import OpenPlan
from .parts import Parts
from .reserve import reserved_rows, withheld_slots
from .sweep_load import SweepLoad

SLACK = 1e-9  # of what they may cost: sums in another order differ by less


def riding_on(parts: Parts, plan: OpenPlan, sweeps: int) -> int:
    """At most ``sweeps`` from the only open plan on; 1 where it is not known. All that run are rows of the plan."""
    rows, queue = parts.rows, parts.queue
    if queue.waiting or len(parts.leases) or rows.free_rows < reserved_rows(parts) or not _rides(parts, plan, 0):
        return 1
    low, high = 1, sweeps + 1  # so many are known to be the same, so many are too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _rides(parts, plan, middle - 1) else (low, middle)
    return low


def withheld(parts: Parts) -> dict[str, int]:
    """Slots that must be left after a jump, as each of its plans would see to it."""
    return withheld_slots(parts) if parts.queue.offline else {}


def _rides(parts: Parts, plan: OpenPlan, ahead: int) -> bool:
    """Whether all offline rows are in the plan that is made so many sweeps later: as ``Ride`` says."""
    rows, config = parts.rows, parts.config
    load = SweepLoad(PLAIN if config.costs is None else config.costs, parts.routes)
    online: dict[str, list[int]] = {}
    ridden: list[tuple[int, int]] = []
    for s, start in zip(plan.sequences, plan.start, strict=True):
        if rows.is_offline(s):
            ridden.append((s, start))
        else:
            sums = online.setdefault(rows.route[s].route.id, [s, 0, 0])
            sums[1] += 1
            sums[2] += start + ahead + 1
    for s, count, near in online.values():
        load.add(rows.route[s], count, count, near, 0)
    if online:
        most = config.offline_delay * load.fixed
    else:  # the first row says how long the sweep may be: longer and longer, but that is not counted on
        s, start = ridden[0]
        one = load.price(rows.route[s], 1, 1, start + 1, 0)
        most = max(2 * one if config.costs is None else config.offline_sweep, one * (1 + config.offline_delay))
    begun = load.seconds
    for s, start in ridden:
        load.add(rows.route[s], 1, 1, start + ahead + 1, 0)
    return (load.seconds - begun) * (1 + SLACK) <= most
