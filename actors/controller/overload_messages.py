"""What the cluster's memory actor and the controller say to each other, and what the controller asks of gateways for it.

Values only. Parameters that exist twice are dropped when KV memory runs out (``policies/overload``): the memory actor
decides that, ``parameter_drops.py`` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.model.chain import Component, Hop
from ..gateway.switch_messages import SwitchFigures


class OverloadEvent:
    """News about parameters that are dropped or come back."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DropParameters(OverloadEvent):
    """memory -> controller: the workers of ``hops`` are to serve an application as one pipeline, and keep nothing else."""

    application: str
    hops: tuple[Hop, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class RestoreParameters(OverloadEvent):
    """memory -> controller: the members of a group are to be replicas again. ``sources``: worker -> who is to send it what
    it lacks, by depth; a depth without one comes from the checkpoint."""

    group: str
    sources: dict[str, dict[int, str]]


@dataclass(frozen=True, slots=True)
class BreakOffRestore(OverloadEvent):
    """memory -> controller: a burst has come; a group stays a pipeline with what it has loaded."""

    group: str


@dataclass(frozen=True, slots=True)
class TrimParameters(OverloadEvent):
    """memory -> controller: what a restore that was broken off has loaded is needed for KV."""

    group: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class MemoryLacks(OverloadEvent):
    """memory -> controller: so many bytes of KV lack that no drop frees."""

    nbytes: int
    why: str


MemoryOrder = DropParameters | RestoreParameters | BreakOffRestore | TrimParameters | MemoryLacks


@dataclass(frozen=True, slots=True)
class RoutesLeft(OverloadEvent):
    """All gateways have answered ``SwitchGateways``: nothing runs on the routes that ended."""

    number: int
    requests: int  # that left


@dataclass(frozen=True, slots=True)
class RequestsSwitched(OverloadEvent):
    """All gateways have answered ``AwaitSwitched``; figures of each."""

    number: int
    figures: tuple[SwitchFigures, ...]


@dataclass(frozen=True, slots=True)
class LoadAgain(OverloadEvent):
    """Answer to ``LoadLater``."""

    worker: str
    application: str


class OverloadEffect:
    """For parameters that are dropped or come back."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SwitchGateways(OverloadEffect):
    """After all publications before it: requests leave the routes ``ended`` (ids) for the routes ``to``; see
    ``SwitchRoutes``."""

    number: int
    ended: list[str]
    to: list[str]
    dropped: bool


@dataclass(frozen=True, slots=True)
class AwaitSwitched(OverloadEffect):
    """Until no request that left waits for its pages any more."""

    number: int


@dataclass(frozen=True, slots=True)
class LoadLater(OverloadEffect):
    """A worker had no room for what comes back."""

    worker: str
    application: str
    seconds: float


@dataclass(frozen=True, slots=True)
class OverloadTold(OverloadEffect):
    """What happened to a group, for people."""

    group: str
    text: str


@dataclass(frozen=True, slots=True)
class HeldStage:
    """A worker of a group: the components ``first`` to ``last`` (exclusive) are its stage; ``held``: depths that it has."""

    worker: str
    first: int
    last: int
    held: list[int]


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """Workers that hold one application together, in the order of their stages; a replica is a group of one. ``state``: as
    ``GroupState``."""

    application: str
    state: str
    members: list[HeldStage]


@dataclass(frozen=True, slots=True)
class MemoryGroups:
    """controller -> memory: who holds what, at a ``version`` of its own."""

    version: int
    groups: list[ServingGroup]
    chains: dict[str, list[Component]]
