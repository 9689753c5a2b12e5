"""Restore decisions: when pipelines become replicas again, which of them, and where the missing parameters come from.

After KunServe, section on restoration: restore once all sequences together use at most half of the undropped KV memory,
and nothing waits. The rest is our own. That must hold now and, by the trend of usage, in ``HYSTERESIS`` seconds (KunServe
asks for falling usage, which a steady load below the limit never shows), and at least that long after a drop. All
pipelines are restored at once, except those whose sequences would not fit. The longest go first, whose tokens take
longest. Parameters come from members of the group, which have them already packed, with each link taking an equal part;
what no member has comes from the checkpoint.

A burst that comes meanwhile aborts the restore: what was loaded stays until it is needed for KV (``drop_plan.py`` trims it
first), and the rest of the memory is KV again at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model.chain import Component
from .drop_plan import GroupMember, ParameterGroup

QUIET = 0.5  # fraction of the undropped KV memory
HYSTERESIS = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The KV of one group, in bytes. ``undropped``: its members' bytes for KV when each holds all parameters."""

    group: ParameterGroup
    used: int
    undropped: int


def next_restores(
    uses: Iterable[GroupUse], *, pending: bool, expected: float, since: float, quiet: float = QUIET
) -> list[ParameterGroup]:
    """Return the groups to restore now, in order.

    Args:
        uses: of all instances of a model, including replicas.
        pending: whether any request waits for memory.
        expected: fraction of the undropped memory used in ``HYSTERESIS`` seconds, by the trend.
        since: seconds since the last drop.
        quiet: fraction of the undropped memory.
    """
    uses = list(uses)
    used, undropped = sum(use.used for use in uses), sum(use.undropped for use in uses)
    if pending or expected > quiet or since < HYSTERESIS or used > quiet * undropped:
        return []
    fitting = [use for use in uses if len(use.group.members) > 1 and use.used <= use.undropped]
    return [use.group for use in sorted(fitting, key=lambda use: (-len(use.group.members), use.used, use.group.name))]


@dataclass(frozen=True, slots=True)
class ParameterLoad:
    """A component that a member lacks. ``source``: the member that sends it; "": the checkpoint."""

    worker: str
    depth: int
    source: str


def loads(group: ParameterGroup, components: Sequence[Component]) -> list[ParameterLoad]:
    """Return the loads of all members in order: components next to their stage first, so that a stage can grow.

    If several members have a component, the one with least to send to this worker sends it.
    """
    found, sent = list[ParameterLoad](), dict[tuple[str, str], int]()
    for member in group.members:
        missing = set(range(len(components))) - member.held
        for depth in sorted(missing, key=lambda depth: (_distance(member, depth), depth)):
            holders = [other.worker for other in group.members if depth in other.held]
            source = min(holders, key=lambda name: (sent.get((name, member.worker), 0), name), default="")
            sent[source, member.worker] = sent.get((source, member.worker), 0) + components[depth].nbytes
            found.append(ParameterLoad(member.worker, depth, source))
    return found


def _distance(member: GroupMember, depth: int) -> int:
    """Return the number of components between a depth and the member's stage."""
    return member.first - depth if depth < member.first else depth - member.last + 1
