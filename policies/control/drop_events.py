"""Messages between the cluster's memory actor and the controller, and the controller's effects on gateways for them.

Values only. Parameters that exist twice are dropped when KV memory runs out (``policies/overload``). The memory actor
decides that; ``parameter_drops.py`` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.chain import Component, Hop
from .route_switch import SwitchFigures, SwitchRoutes


@dataclass(frozen=True, slots=True)
class DropParameters:
    """memory -> controller: the order that workers serve an application as one pipeline, ``hops``, and keep nothing else.

    If they do so already, they free, for KV, what an aborted restore has loaded; if they are becoming replicas again, they
    stay a pipeline with what they have.
    """

    application: str
    hops: tuple[Hop, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class RestoreParameters:
    """memory -> controller: the order that the members of a group become replicas again.

    ``sources``: worker -> the worker that sends it what it lacks, by depth. A depth without one comes from the checkpoint.
    """

    group: str
    sources: dict[str, dict[int, str]]


@dataclass(frozen=True, slots=True)
class MemoryLacks:
    """memory -> controller: bytes of KV that are lacking and that no drop can free."""

    nbytes: int
    why: str


MemoryOrder = DropParameters | RestoreParameters | MemoryLacks


@dataclass(frozen=True, slots=True)
class RoutesLeft:
    """The answer of all gateways to ``SwitchRoutes``: nothing runs on the routes that ended."""

    number: int
    requests: int  # requests that left


@dataclass(frozen=True, slots=True)
class RequestsSwitched:
    """The answer of all gateways to ``AwaitSwitched``, with figures of each."""

    number: int
    figures: tuple[SwitchFigures, ...]


OverloadEvent = MemoryOrder | RoutesLeft | RequestsSwitched


@dataclass(frozen=True, slots=True)
class AwaitSwitched:
    """A wait until no request that left waits for its pages any more."""

    number: int


@dataclass(frozen=True, slots=True)
class OverloadNote:
    """An event in a group's history, for people."""

    group: str
    text: str


OverloadEffect = SwitchRoutes | AwaitSwitched | OverloadNote


@dataclass(frozen=True, slots=True)
class GroupStageOnWorker:
    """A worker of a group: its stage is the components ``first`` to ``last`` (exclusive).

    ``held``: the depths that it has.
    """

    worker: str
    first: int
    last: int
    held: list[int]


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """Workers that hold one application together, in the order of their stages; a replica is a group of one.

    ``state``: as in ``GroupState``.
    """

    application: str
    state: str
    members: list[GroupStageOnWorker]


@dataclass(frozen=True, slots=True)
class MemoryGroups:
    """controller -> memory: the groups with what they hold, under a ``version`` of their own."""

    version: int
    groups: list[ServingGroup]
    chains: dict[str, list[Component]]
