"""Checks of drop orders: whether parameters can be dropped as planned, since a burst may have changed things meanwhile.

Owns the rule that a drop takes whole groups of one application that are doing nothing else, and that no stage has to be
loaded for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..model.chain import Hop
from .coordinator import GroupState
from .drop_plan import ParameterGroup


def undroppable(
    application: str, hops: Sequence[Hop], groups: Mapping[ParameterGroup, GroupState], unfit: Mapping[str, str]
) -> str:
    """Return why these hops cannot become one pipeline: a sentence, or empty.

    Args:
        application: the memory actor's name of the group.
        hops: its stages, in order.
        groups: all groups, and what they are doing.
        unfit: why workers can be in no group, where known.
    """
    workers = {hop.worker: None for hop in hops}
    owners = [group for group in groups if any(member.worker in workers for member in group.members)]
    held = {member.worker: member.held for group in owners for member in group.members}
    for worker in workers:
        if worker not in held:
            return unfit.get(worker) or f"worker {worker} serves no whole model now"
    if any(group.application != application for group in owners):
        return f"not all of {', '.join(workers)} serve {application}"
    if any(groups[group] not in (GroupState.NORMAL, GroupState.PIPELINE) for group in owners):
        return f"a group of {', '.join(workers)} is changing"
    if held.keys() != workers.keys() or len(workers) != len(hops):
        return f"a group would be cut by {', '.join(workers)}"
    for hop in hops:
        if not held[hop.worker].issuperset(range(hop.first, hop.last)):
            return f"worker {hop.worker} does not hold components {hop.first} to {hop.last}"
    return ""
