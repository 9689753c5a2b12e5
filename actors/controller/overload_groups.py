"""Which workers hold a model together, as the memory actor is told, and which orders are possible now."""

from __future__ import annotations

from typing import Protocol

from blockwright.actors.controller.dropped_group import GroupStage
from blockwright.actors.controller.overload_messages import (
    BreakOffRestore,
    DropParameters,
    HeldStage,
    MemoryGroups,
    MemoryOrder,
    RestoreParameters,
    ServingGroup,
    TrimParameters,
)
from blockwright.actors.controller.parameter_drops import OverloadParts, ParameterDrops, is_replica
from blockwright.actors.controller.residency import PlannedRoute
from blockwright.policies.overload.coordinator import GroupState


class OverloadedParts(OverloadParts, Protocol):
    """``ControllerState``, with the groups."""

    overload: ParameterDrops


def unfit(state: OverloadParts, worker: str) -> str:
    """Why a worker can be in no group: a sentence, or empty."""
    if worker not in state.workers:
        return f"worker {worker} does not exist"
    here = [name for name, hops in state.residency[worker].hops.items() if hops and state.served[name].here]
    if worker in state.scaling.draining:
        return f"worker {worker} is drained"
    if len(here) > 1:
        return f"worker {worker} serves {len(here)} models ({', '.join(here)}); parameters are dropped where it is one"
    return ""


def serving_groups(state: OverloadedParts) -> list[ServingGroup]:
    """All that could change, replicas too."""
    found = []
    for served in state.served.values():
        if not (served.here and served.shown) or served.draining or served.on_demand:
            continue
        for one in served.planned:
            alone = one.whole and is_replica(one, state.placement) and one.route.id not in state.table.paused
            if alone and not unfit(state, one.route.home):
                found.append(_told(state, GroupState.NORMAL, one))
    return found + [_told(state, group.stage.group_state, group.pipeline) for group in state.overload.groups.values()]


def _told(state: OverloadedParts, stage: GroupState, planned: PlannedRoute) -> ServingGroup:
    name = planned.route.application
    members = [
        HeldStage(hop.worker, hop.first, hop.last, sorted(state.residency[hop.worker].resident.get(name, ())))
        for hop in planned.route.hops
    ]
    return ServingGroup(name, stage.value, members)


def memory_groups(state: OverloadedParts, known: int) -> MemoryGroups | None:
    """For the memory actor, which knows a version; None where nothing has changed."""
    version = state.overload.version + state.table.version
    if version == known:
        return None
    groups = serving_groups(state)
    chains = {one.application: list(state.served[one.application].application.components) for one in groups}
    refused = {worker: why for worker in state.workers if (why := unfit(state, worker))}
    return MemoryGroups(version, groups, chains, refused)


def refusal(state: OverloadedParts, order: MemoryOrder) -> str:
    """Why an order cannot be carried out, as things are now: a sentence, or empty."""
    groups = state.overload.groups
    match order:
        case DropParameters():
            return _undroppable(state, order)
        case RestoreParameters(name) | TrimParameters(name):
            if name not in groups or groups[name].stage is not GroupStage.PIPELINE:
                return f"group {name} is no pipeline"
        case BreakOffRestore(name):
            if name not in groups or groups[name].stage is not GroupStage.LOADING or groups[name].rescued:
                return f"group {name} loads nothing that could be left"
    return ""


def _undroppable(state: OverloadedParts, order: DropParameters) -> str:
    workers = {hop.worker: None for hop in order.hops}
    owners = [one for one in serving_groups(state) if any(m.worker in workers for m in one.members)]
    held = {member.worker: member.held for one in owners for member in one.members}
    for worker in workers:
        if worker not in held:
            return unfit(state, worker) or f"worker {worker} serves no whole model now"
    if any(one.application != order.application for one in owners):
        return f"not all of {', '.join(workers)} serve {order.application}"
    if any(one.state not in (GroupState.NORMAL, GroupState.PIPELINE) for one in owners):
        return f"a group of {', '.join(workers)} is changing"
    if held.keys() != workers.keys() or len(workers) != len(order.hops):
        return f"a group would be cut by {', '.join(workers)}"
    for hop in order.hops:
        if not {*range(hop.first, hop.last)} <= {*held[hop.worker]}:
            return f"worker {hop.worker} does not hold components {hop.first} to {hop.last}"
    return ""
