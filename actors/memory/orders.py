"""Conversions of the cluster's memory actor: from readings to its policy, and from the policy's decisions to orders."""

from __future__ import annotations

from collections.abc import Mapping

from ...policies.control.drop_events import (
    BreakOffRestore,
    DropParameters,
    MemoryGroups,
    MemoryLacks,
    MemoryOrder,
    RestoreParameters,
    ServingGroup,
    TrimParameters,
)
from ...policies.model.chain import Component
from ...policies.overload.coordinator import (
    BeginDrop,
    BeginRestore,
    CapacityShortage,
    Decision,
    GroupState,
    MemoryCoordinator,
    OverloadRules,
    ResumePipeline,
)
from ...policies.overload.demand import DemandReading
from ...policies.overload.drop_plan import DropPlanner, GroupMember, ParameterGroup
from ...policies.overload.group_reading import as_packed
from ...policies.overload.pool_reading import PoolReading
from ...policies.overload.stages import component_seconds
from ...policies.plan.coefficients import Coefficients


class ModelMemory:
    """The coordinator of one application, from the workers' first readings on. ``max_members``: workers of a pipeline."""

    def __init__(self, application: str, rules: OverloadRules, costs: Coefficients, max_members: int) -> None:
        self._application = application
        self._rules = rules
        self._costs = costs
        self._max_members = max_members
        self._budgets: dict[str, int] = {}  # by worker
        self.coordinator = self._make([])

    def _make(self, components: list[Component]) -> MemoryCoordinator:
        name, seconds = self._application, component_seconds(components, self._costs)
        planner = DropPlanner({name: components}, {name: seconds}, max_members=self._max_members)
        size = next((c.kv.page_size for c in components if c.kv is not None), 1)
        return MemoryCoordinator(self._rules, planner, components, [], size)

    def adopt(self, now: float, groups: MemoryGroups, readings: Mapping[str, PoolReading]) -> None:
        """Adopt the groups as the controller reports them; a worker's budget is known once it has answered."""
        self._budgets.update((name, reading.budget) for name, reading in readings.items())
        mine = [one for one in groups.groups if one.application == self._application]
        known = [one for one in mine if all(member.worker in self._budgets for member in one.members)]
        if known and not self.coordinator.groups:
            held = [(member.worker, member.held) for one in known for member in one.members]
            self.coordinator = self._make(as_packed(groups.chains[self._application], held, readings))
        self.coordinator.adopt(now, {self._group(one): GroupState(one.state) for one in known})

    def _group(self, group: ServingGroup) -> ParameterGroup:
        members = [
            GroupMember(one.worker, one.first, one.last, frozenset(one.held), self._budgets[one.worker])
            for one in group.members
        ]
        return ParameterGroup(self._application, tuple(members))


def order_of(application: str, decision: Decision, readings: Mapping[str, DemandReading]) -> MemoryOrder:
    """Return the order for a decision. ``readings``: of all groups, for the reason shown to people."""
    match decision:
        case BeginDrop(drop):
            why = "; ".join(f"{name} {one.used} of {one.total} pages, {one.waiting} wait" for name, one in readings.items())
            if len(drop.of) == 1:
                return TrimParameters(drop.group.name, why)
            return DropParameters(application, drop.group.hops, why)
        case BeginRestore(group, loads):
            sources: dict[str, dict[int, str]] = {}
            for load in loads:
                sources.setdefault(load.worker, {})[load.depth] = load.source
            return RestoreParameters(group.name, sources)
        case ResumePipeline(group):
            return BreakOffRestore(group.name)
        case CapacityShortage(lacking, why):
            return MemoryLacks(lacking, why)
