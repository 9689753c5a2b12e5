"""Backfill in forecasts: the number of sweeps with the same offline rows, which bounds a jump.

The cost of rows grows with their positions, sweep by sweep; their budget beside online rows is constant, or grows as
evenly. So rows that fit into the first and the last of some sweeps fit into all between.
"""

from __future__ import annotations

from ..plan.fit import PLAIN
from .open_plans import OpenPlan
from .parts import Parts
from .reserve import reserved_rows, withheld_slots
from .sweep_load import SweepLoad

SLACK = 1e-9  # relative; sums in another order differ by less


def backfill_repeats(parts: Parts, plan: OpenPlan, sweeps: int) -> int:
    """Return for how many sweeps, at most ``sweeps``, the same offline rows run; 1 if unknown.

    It counts from the only open plan on. All running sequences are rows of the plan.
    """
    rows, queue = parts.rows, parts.queue
    if queue.waiting or len(parts.leases) or rows.free_rows < reserved_rows(parts) or not _rides(parts, plan, 0):
        return 1
    low, high = 1, sweeps + 1  # the first number is known to hold, the second is too large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _rides(parts, plan, middle - 1) else (low, middle)
    return low


def withheld(parts: Parts) -> dict[str, int]:
    """Return the slots that must be left after a jump, as each of its plans would leave them."""
    return withheld_slots(parts) if parts.queue.offline else {}


def _rides(parts: Parts, plan: OpenPlan, ahead: int) -> bool:
    """Return whether all offline rows are in the plan made ``ahead`` sweeps later, by the rule of ``BackfillBudget``."""
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
        limit = config.offline_delay * load.fixed
    else:  # the first row sets the limit, which grows; the growth is not counted on
        s, start = ridden[0]
        one = load.price(rows.route[s], 1, 1, start + 1, 0)
        limit = max(2 * one if config.costs is None else config.offline_sweep, one * (1 + config.offline_delay))
    before = load.seconds
    for s, start in ridden:
        load.add(rows.route[s], 1, 1, start + ahead + 1, 0)
    return (load.seconds - before) * (1 + SLACK) <= limit
