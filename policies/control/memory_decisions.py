"""Decisions on parameters to drop or restore, from readings of the workers' memory and the groups of the controller.

There is a coordinator for each model (``policies/overload/coordinator.py``); here its decisions become orders to the
controller. The memory actor of a live cluster runs this, and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..model.chain import Component
from ..overload.coordinator import (
    BeginDrop,
    BeginRestore,
    CapacityShortage,
    Decision,
    GroupState,
    MemoryCoordinator,
    OverloadRules,
    ResumePipeline,
)
from ..overload.demand import DemandReading
from ..overload.drop_plan import DropPlanner, GroupMember, ParameterGroup
from ..overload.group_reading import as_packed, group_readings
from ..overload.pool_reading import PoolReading
from ..overload.stages import component_seconds
from ..plan.coefficients import Coefficients
from .drop_events import (
    DropParameters,
    MemoryGroups,
    MemoryLacks,
    MemoryOrder,
    RestoreParameters,
    ServingGroup,
)


class MemoryDecisions:
    """The coordinators of a cluster, one for each model, and the groups that the controller last reported.

    costs: of sweeps, for stages that take equally long. max_members: workers of a pipeline.
    """

    def __init__(self, rules: OverloadRules, costs: Coefficients, max_members: int) -> None:
        self._rules, self._costs = rules, costs
        self._max_members = max_members
        self._models: dict[str, ModelMemory] = {}  # by application
        self._groups = MemoryGroups(-1, [], {})
        self.of_groups: dict[str, DemandReading] = {}  # the last readings, by group

    @property
    def version(self) -> int:
        """The version of the known groups; -1: the controller is to report them whatever their version is."""
        return self._groups.version

    @property
    def groups(self) -> list[ServingGroup]:
        """The known groups."""
        return self._groups.groups

    @property
    def resting(self) -> bool:
        """True if all groups are replicas."""
        return all(model.coordinator.resting for model in self._models.values())

    def workers(self, reported: MemoryGroups | None) -> list[str]:
        """Return the workers of all groups, for readings. ``reported``: the controller's groups if they have changed."""
        return [member.worker for group in (reported or self._groups).groups for member in group.members]

    def read(self, now: float, reported: MemoryGroups | None, readings: Mapping[str, PoolReading]) -> list[MemoryOrder]:
        """Return the orders that follow from readings, by worker. ``reported``: as in ``workers``."""
        if reported is not None:
            self._groups = reported
        for name in self._groups.chains.keys() - self._models.keys():
            self._models[name] = ModelMemory(name, self._rules, self._costs, self._max_members)
        for name in self._models.keys() - self._groups.chains.keys():
            del self._models[name]
        orders = []
        self.of_groups = {}
        for name, model in self._models.items():
            model.adopt(now, self._groups, readings)
            of_groups = group_readings(model.coordinator.groups.values(), readings)
            decisions = model.coordinator.read(now, of_groups) if of_groups else []
            orders += [order_of(name, decision, of_groups) for decision in decisions]
            self.of_groups |= of_groups
        return orders

    def refused(self) -> None:
        """Note that the controller does not carry out an order: its groups are not as the coordinators have them."""
        self._groups = replace(self._groups, version=-1)


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
            return DropParameters(application, drop.group.hops, why)
        case BeginRestore(group, loads):
            sources: dict[str, dict[int, str]] = {}
            for load in loads:
                sources.setdefault(load.worker, {})[load.depth] = load.source
            return RestoreParameters(group.name, sources)
        case ResumePipeline(group):
            return DropParameters(application, group.hops, "a burst came")
        case CapacityShortage(lacking, why):
            return MemoryLacks(lacking, why)
