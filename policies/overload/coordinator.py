"""The coordinator of the cluster's memory: in a burst (overload) it decides which replicas drop parameters.

Readings of instances come in; drops, restores and calls for help come out.

Its state: the groups, their changes in progress, and the time of the last change. Groups drop side by side, because memory
freed at one does not help requests that wait at another. They are restored only while nothing else changes.
A restore after a drop, and a drop after a restore, wait ``HYSTERESIS`` from its end. A drop after a drop of the same group
waits only ``SETTLE``, since a burst does not wait, and so does a restore after a restore, since quiet for
one group is quiet for the next. The controller keeps the groups: ``adopt`` reports them here, and decisions become orders to
it (``policies/control/memory_decisions.py``). docs/decisions/parameter-dropping.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..model.chain import Component
from .demand import THROTTLED, DemandMonitor, DemandReading, UsageWindow
from .drop_plan import DropPlanner, GroupDrop, ParameterGroup, kv_bytes, nbytes
from .message_throttle import MessageThrottle
from .restore import HYSTERESIS, QUIET, GroupUse, ParameterLoad, loads, next_restores

SETTLE = 0.3  # seconds after a change of the same kind, in which waiting requests start
SETTLED = float("-inf")


class GroupState(StrEnum):
    """The state of a group."""

    NORMAL = "normal"  # a replica
    DROPPING = "dropping"
    PIPELINE = "pipeline"
    RESTORING = "restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadRules:
    """The settings.

    throttled, quiet: fractions of memory (``demand.py``, ``restore.py``). horizon: seconds for which usage is
    extrapolated. restore: if False, dropped parameters stay dropped.
    """

    throttled: float = THROTTLED
    horizon: float = 0.0
    quiet: float = QUIET
    restore: bool = True


@dataclass(frozen=True, slots=True)
class BeginDrop:
    """The decision to merge groups into one."""

    drop: GroupDrop


@dataclass(frozen=True, slots=True)
class BeginRestore:
    """The decision to make the members of a group replicas again, with these loads."""

    group: ParameterGroup
    loads: tuple[ParameterLoad, ...]


@dataclass(frozen=True, slots=True)
class ResumePipeline:
    """The decision to abort a restore; ``group`` includes what was loaded."""

    group: ParameterGroup


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """A report of bytes of KV that are lacking and that no drop frees, for the part that starts workers."""

    lacking: int
    why: str


Decision = BeginDrop | BeginRestore | ResumePipeline | CapacityShortage


class MemoryCoordinator:
    """The coordinator for one model with these ``components``. page_size: tokens of the pages that readings count."""

    def __init__(
        self,
        rules: OverloadRules,
        planner: DropPlanner,
        components: Sequence[Component],
        groups: Sequence[ParameterGroup],
        page_size: int,
    ) -> None:
        self._rules = rules
        self._planner = planner
        self._components = components
        self.groups = {group.name: group for group in groups}
        self.state = dict.fromkeys(self.groups, GroupState.NORMAL)
        self._monitor = DemandMonitor(throttled=rules.throttled, horizon=rules.horizon)
        self._usage = UsageWindow()  # usage of all groups, as a fraction of the undropped memory
        self._page_bytes = page_size * kv_bytes(components, 0, len(components))
        self._whole = nbytes(components, range(len(components)))
        # Ends of the last drop (or aborted restore) and of the last restore; drop time of each group.
        self._dropped = self._restored = SETTLED
        self._since: dict[str, float] = {}
        self._reported = ""  # last reported reason why plans fall short
        self._telling = MessageThrottle()

    def read(self, at: float, readings: Mapping[str, DemandReading]) -> list[Decision]:
        """Return the decisions that follow from readings of all groups, by name. They count as begun."""
        self._monitor.read(at, readings)
        uses = [
            GroupUse(group, reading.used * self._page_bytes, sum(m.budget - self._whole for m in group.members))
            for name, reading in readings.items()
            for group in (self.groups[name],)
        ]
        self._usage.add(at, sum(use.used for use in uses) / max(sum(use.undropped for use in uses), 1))
        if self._monitor.throttling():
            return self._resume() or self._drop(at)
        if not self._rules.restore or self._changing or at - self._restored < SETTLE:
            return []
        pending, expected = self._monitor.pending, self._usage.expected(HYSTERESIS)
        quiet = next_restores(uses, pending=pending, expected=expected, since=at - self._dropped, quiet=self._rules.quiet)
        self.state |= dict.fromkeys([group.name for group in quiet], GroupState.RESTORING)
        return [BeginRestore(group, tuple(loads(group, self._components))) for group in quiet]

    @property
    def _changing(self) -> bool:
        return any(state in (GroupState.DROPPING, GroupState.RESTORING) for state in self.state.values())

    def _resume(self) -> list[Decision]:
        names = [name for name, state in self.state.items() if state is GroupState.RESTORING]
        for name in names:
            self.state[name] = GroupState.PIPELINE
        return [ResumePipeline(self.groups[name]) for name in names]

    def _drop(self, at: float) -> list[Decision]:
        """Return drops of steady groups, if one of them throttles; none while any group is being restored."""
        steady = [
            name
            for name, state in self.state.items()
            if state in (GroupState.NORMAL, GroupState.PIPELINE) and at - self._since.get(name, SETTLED) >= SETTLE
        ]
        throttling = {*steady} & {*self._monitor.throttling()}
        if not throttling or GroupState.RESTORING in self.state.values() or at - self._restored < HYSTERESIS:
            return []
        lacking = {name: pages * self._page_bytes for name, pages in self._monitor.lacking().items() if name in steady}
        all_steady = len(steady) == len(self.groups)
        plan = self._planner.plan([self.groups[name] for name in steady], sum(lacking.values()), lacking)
        for drop in plan.drops:
            for old in drop.of:
                del self.groups[old.name], self.state[old.name]
            self.groups[drop.group.name], self.state[drop.group.name] = drop.group, GroupState.DROPPING
        decisions: list[Decision] = [BeginDrop(drop) for drop in plan.drops]
        if all_steady and plan.why != self._reported:  # else a change in progress may free it
            if not plan.why:
                self._reported = ""
            elif self._telling.news(plan.why, at):
                self._reported = plan.why
                decisions.append(CapacityShortage(plan.lacking, plan.why))
        return decisions

    # what came of it -------------------------------------------------------------------------------------------------

    def adopt(self, at: float, groups: Mapping[ParameterGroup, GroupState]) -> None:
        """Take these groups and their states as the current ones: members may have died, orders may have been refused.

        A change that was in progress and is no more has ended.
        """
        was, count = self._changing, len(self.groups)
        new = [g.name for g, state in groups.items() if state is GroupState.PIPELINE and not self._is_pipeline(g.name)]
        self._since = {g.name: self._since[g.name] for g in groups if g.name in self._since} | dict.fromkeys(new, at)
        self.groups = {group.name: group for group in groups}
        self.state = {group.name: state for group, state in groups.items()}
        if was and not self._changing:
            more = len(groups) > count
            self._dropped, self._restored = (self._dropped, at) if more else (at, self._restored)

    def _is_pipeline(self, name: str) -> bool:
        return self.state.get(name) is GroupState.PIPELINE

    @property
    def resting(self) -> bool:
        """True if all groups are replicas: without load there is nothing to decide."""
        return all(state is GroupState.NORMAL for state in self.state.values())
