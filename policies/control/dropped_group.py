"""Groups: workers that serve as one pipeline because parameters were dropped, and the history of such changes.

Workers that serve several applications with equally built chains, such as a foundation model and its fine-tunes, drop the
same depths of all of them: each application has a pipeline, cut at the same depths. Such applications are *together*.
Values only; ``parameter_drops.py`` has the behavior.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..model.chain import Hop, Route
from ..overload.coordinator import GroupState
from .residency import Residency, Served
from .route_switch import SwitchFigures


class GroupStage(StrEnum):
    """The progress of a group in the controller's terms. ``group_state`` is the same in the policies' terms."""

    LEAVING = "leaving"  # gateways take requests off the old routes
    EXCHANGING = "exchanging"  # the parameters are gone; requests from there wait for their pages
    PIPELINE = "pipeline"
    LOADING = "loading"
    RETURNING = "returning"  # the replicas are whole; requests move back

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
    pipelines: list[Route]  # one for each application
    replicas: list[Route]  # one for each of its workers and applications
    leaving: list[Route]  # routes that its requests come from
    before: list[DroppedGroup]  # earlier groups that were merged into this one
    stage: GroupStage = GroupStage.LEAVING
    order: int = 0  # number of the last order to gateways
    change: ParameterChange | None = None  # in progress
    sources: dict[str, dict[int, str]] = field(default_factory=dict)  # as in ``RestoreParameters``
    rescued: bool = False  # a member died: the first whole replica is enough

    @property
    def applications(self) -> list[str]:
        return [one.application for one in self.pipelines]

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Its stages, the same for all applications."""
        return self.pipelines[0].hops

    @property
    def workers(self) -> list[str]:
        """Its workers in the order of their stages."""
        return [hop.worker for hop in self.hops]

    def leave(self, application: str) -> list[Route]:
        """Remove an application that is no longer served; return its pipelines, here and in the merged groups."""
        gone = [one for one in self.pipelines if one.application == application]
        for routes in (self.pipelines, self.replicas, self.leaving):
            routes[:] = [one for one in routes if one.application != application]
        return gone + [one for group in self.before for one in group.leave(application)]


@dataclass(slots=True)
class ParameterChange:
    """A drop or a restore, as shown to people."""

    what: str  # "drop" | "trim" | "restore" | "break off" | "rescue" | "lacking"
    group: str
    at: float
    why: str
    nbytes: int = 0  # bytes that a drop frees, or that are lacking
    left: float | None = None  # when the old routes were empty
    ended: float | None = None
    requests: int = 0
    figures: list[SwitchFigures] = field(default_factory=list)  # one for each gateway


def together(served: Mapping[str, Served], residency: Residency) -> list[Served]:
    """Return the applications that belong on a worker now, in order of arrival.

    An application that waits for room there and is served by other workers is left out.
    """
    here = (served[name] for name, hops in residency.hops.items() if hops and not residency.waits(name))
    return sorted((one for one in here if one.wanted), key=lambda one: one.rank)


def name_of(served: Iterable[Served]) -> str:
    """Return the memory actor's name for applications that are together; for a single one, its own name."""
    return ", ".join(one.application.name for one in served)
