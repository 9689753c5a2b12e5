"""Workers that serve as one pipeline because parameters were dropped, and what happened to them. Values; no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from blockwright.actors.controller.residency import PlannedRoute, Served
from blockwright.actors.gateway.switch_messages import SwitchFigures
from blockwright.policies.overload.coordinator import GroupState


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
    """Workers that serve an application as one pipeline, since each has dropped a part of its parameters."""

    name: str
    served: Served
    pipeline: PlannedRoute
    replicas: list[PlannedRoute]  # of each of its workers
    leaving: list[PlannedRoute]  # what its requests come from
    before: list[DroppedGroup]  # the groups of which these are pipelines
    stage: GroupStage = GroupStage.LEAVING
    order: int = 0  # the last that gateways were given
    change: ParameterChange | None = None  # under way
    sources: dict[str, dict[int, str]] = field(default_factory=dict)  # as ``RestoreParameters`` has them
    rescued: bool = False  # a member died: the first replica that is whole is enough

    @property
    def application(self) -> str:
        return self.served.application.name

    @property
    def workers(self) -> list[str]:
        """In the order of their stages."""
        return [hop.worker for hop in self.pipeline.route.hops]


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
