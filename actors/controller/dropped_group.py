"""Workers that serve as one pipeline because parameters were dropped, and what happened to them. Values; no behaviour.

Workers that serve several applications whose chains are built alike, as a foundation and its fine-tunes are, drop the same
depths of all of them: each application has a pipeline, cut at the same depths. Such applications are *together*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...policies.model.chain import Hop
from ...policies.overload.coordinator import GroupState
from ..gateway.switch_messages import SwitchFigures
from .residency import PlannedRoute, Residency, Served


class GroupStage(StrEnum):
    """How far a group is; what ``GroupState`` distinguishes is in ``group_state``."""

    LEAVING = "leaving"  # gateways take requests off what served before
    EXCHANGING = "exchanging"  # the parameters are gone; requests that were there wait for their pages
    PIPELINE = "pipeline"
    LOADING = "loading"
    RETURNING = "returning"  # the replicas are whole; requests go back

    @property
    def group_state(self) -> GroupState:
        dropping = self in (GroupStage.LEAVING, GroupStage.EXCHANGING)
        return (
            GroupState.PIPELINE if self is GroupStage.PIPELINE else GroupState.DROPPING if dropping else GroupState.RESTORING
        )


@dataclass(slots=True, eq=False)
class DroppedGroup:
    """Workers that serve applications as one pipeline, since each has dropped a part of their parameters."""

    name: str
    pipelines: list[PlannedRoute]  # of each application
    replicas: list[PlannedRoute]  # of each of its workers and applications
    leaving: list[PlannedRoute]  # what its requests come from
    before: list[DroppedGroup]  # the groups of which these are pipelines
    stage: GroupStage = GroupStage.LEAVING
    order: int = 0  # the last that gateways were given
    change: ParameterChange | None = None  # under way
    sources: dict[str, dict[int, str]] = field(default_factory=dict)  # as ``RestoreParameters`` has them
    rescued: bool = False  # a member died: the first replica that is whole is enough

    @property
    def served(self) -> list[Served]:
        return [one.served for one in self.pipelines]

    @property
    def applications(self) -> list[str]:
        return [one.route.application for one in self.pipelines]

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Its stages, the same of all applications."""
        return self.pipelines[0].route.hops

    @property
    def workers(self) -> list[str]:
        """In the order of their stages."""
        return [hop.worker for hop in self.hops]

    def leave(self, application: str) -> list[PlannedRoute]:
        """One of several applications is served no more: its pipelines, here and in the groups that it came from."""
        gone = [one for one in self.pipelines if one.route.application == application]
        for routes in (self.pipelines, self.replicas, self.leaving):
            routes[:] = [one for one in routes if one.route.application != application]
        return gone + [one for group in self.before for one in group.leave(application)]


@dataclass(slots=True)
class ParameterChange:
    """A drop or a restore, for people."""

    what: str  # "drop" | "trim" | "restore" | "break off" | "rescue" | "lacking"
    group: str
    at: float
    why: str
    nbytes: int = 0  # that a drop frees, or that lack
    left: float | None = None  # when nothing ran any more on what served before
    ended: float | None = None
    requests: int = 0
    figures: list[SwitchFigures] = field(default_factory=list)  # of each gateway


def together(served: Mapping[str, Served], residency: Residency) -> list[Served]:
    """What belongs on a worker now, in order of arrival; not what waits for room there and is served by others."""
    here = (served[name] for name, hops in residency.hops.items() if hops and not residency.waits(name))
    return sorted((one for one in here if one.here), key=lambda one: one.rank)


def name_of(served: Iterable[Served]) -> str:
    """By which the memory actor knows applications that are together: of one application its name."""
    return ", ".join(one.application.name for one in served)
