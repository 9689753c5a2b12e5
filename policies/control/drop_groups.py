"""Groups of workers that hold a model together, as reported to the memory actor, and the checks of its orders."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.chain import Hop
from ..overload.coordinator import GroupState
from ..overload.drop_order import undroppable
from ..overload.drop_plan import GroupMember, ParameterGroup
from ..overload.same_kv_layout import alike, united
from .drop_events import (
    DropParameters,
    GroupStageOnWorker,
    MemoryGroups,
    MemoryOrder,
    RestoreParameters,
    ServingGroup,
)
from .dropped_group import GroupStage, name_of, together
from .residency import Residency, Served
from .state import ControllerState


def unfit(state: ControllerState, worker: str) -> str:
    """Return why a worker can be in no group: a sentence, or empty."""
    if worker not in state.workers:
        return f"worker {worker} does not exist"
    if state.workers[worker].joined:
        return f"worker {worker} has joined, and may leave at any time"
    if worker in state.holdings.draining:
        return f"worker {worker} is drained"
    here = together(state.served, state.residency[worker])
    if len(here) > 1 and not alike(served.application.components for served in here):
        return f"worker {worker} serves {len(here)} models ({name_of(here)}) whose layers have different KV"
    return ""


def serving_groups(state: ControllerState) -> list[ServingGroup]:
    """Return all groups that could change, including replicas. Workers form a group if they serve the same applications."""
    return [_serving_group(state, *group) for group in _groups(state)]


def _groups(state: ControllerState) -> list[tuple[GroupState, list[Served], tuple[Hop, ...]]]:
    found = []
    for worker, residency in state.residency.items():
        here = together(state.served, residency)
        if not unfit(state, worker) and not _apart(state, worker):
            found.append((GroupState.NORMAL, here, (Hop(worker, 0, len(here[0].application.components)),)))
    groups = state.overload.groups.values()
    return found + [(g.stage.group_state, [state.served[name] for name in g.applications], g.hops) for g in groups]


def _apart(state: ControllerState, worker: str) -> str:
    """Return why a worker does not serve all that belongs there as a replica, or will not go on so: a sentence, or empty."""
    residency = state.residency[worker]
    here = together(state.served, residency)
    if not here:
        return f"worker {worker} serves no model"
    reasons = (_no_replica(state, worker, served, residency) for served in here)
    return next(filter(None, reasons), "")


def _no_replica(state: ControllerState, worker: str, served: Served, residency: Residency) -> str:
    name = served.application.served_as
    if not served.shown or served.draining:
        return f"model {name} is being {'removed' if served.draining else 'added'}"
    replicas = [hop.route for hop in residency.hops[served.application.name] if state.holdings.is_replica(hop.route)]
    if not replicas:
        return f"worker {worker} serves only a part of {name}"
    serves = any(one.whole and one.route.id not in state.table.paused for one in replicas)
    return "" if serves else f"worker {worker} has not loaded all of {name}"


def _serving_group(state: ControllerState, stage: GroupState, served: Sequence[Served], hops: Sequence[Hop]) -> ServingGroup:
    names = [one.application.name for one in served]
    members = []
    for hop in hops:
        resident = [state.residency[hop.worker].resident.get(name, set()) for name in names]
        members.append(GroupStageOnWorker(hop.worker, hop.first, hop.last, sorted(set.intersection(*resident))))
    return ServingGroup(name_of(served), stage.value, members)


def memory_groups(state: ControllerState, known: int) -> MemoryGroups | None:
    """Return the groups for the memory actor; None if nothing has changed since the version that it knows."""
    version = state.overload.version + state.table.version
    if version == known:
        return None
    every = {name_of(served): served for _, served, _ in _groups(state)}
    chains = {name: united([one.application.components for one in served]) for name, served in every.items()}
    return MemoryGroups(version, serving_groups(state), chains)


def refused_workers(state: ControllerState) -> dict[str, str]:
    """Return why workers are in no group now."""
    alone = [worker for worker in state.workers if not state.holdings.dropped_on(worker)]
    return {worker: why for worker in alone if (why := unfit(state, worker) or _apart(state, worker))}


def refusal(state: ControllerState, order: MemoryOrder) -> str:
    """Return why an order cannot be carried out now: a sentence, or empty."""
    groups, leaving = state.overload.groups, state.demand.leaving
    match order:
        case DropParameters(application) if leaving and leaving in application.split(", "):
            return f"model {leaving} gives way to one that is loaded on demand"
        case RestoreParameters(name) if name in groups and leaving in groups[name].applications:
            return f"model {leaving} gives way to one that is loaded on demand"
        case DropParameters(_, hops):
            group = state.overload.group_with(hops)
            if group is not None and group.stage is GroupStage.LOADING and not group.rescued:
                return ""
            worst = {hop.worker: unfit(state, hop.worker) for hop in order.hops}
            return undroppable(order.application, order.hops, _parameter_groups(state), worst)
        case RestoreParameters(name):
            if name not in groups or groups[name].stage is not GroupStage.PIPELINE:
                return f"group {name} is no pipeline"
    return ""


def _parameter_groups(state: ControllerState) -> dict[ParameterGroup, GroupState]:
    """Return the groups in the policies' terms. Budgets are 0, since only the memory actor knows the workers' budgets."""
    found = {}
    for group in serving_groups(state):
        members = [GroupMember(one.worker, one.first, one.last, frozenset(one.held), 0) for one in group.members]
        found[ParameterGroup(group.application, tuple(members))] = GroupState(group.state)
    return found
