"""Worker admission: the actor that takes in workers on other machines, which have joined the cluster by themselves.

A worker brings its name, its release and what its starter demands; it gets the same configuration as the head's own workers.
At the head an actor stands for it. Owns no state: who is a member is known to the cluster, what is placed there
to the controller.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Protocol

from ..policies.cluster.worker_size import SizeDemand
from ..runtime.actor.actor import Actor, ActorNode
from ..runtime.actor.endpoint import endpoint
from ..runtime.cluster.join_text import LAUNCHED, WORKER
from ..runtime.cluster.members import Member
from ..runtime.cluster.process import JoinedNodes, JoinedProcess
from .settings.launching import LaunchSettings
from .worker.messages import WorkerConfig

RELEASE = version("blockwright")
MOST_LABELS = 32
LONGEST_LABEL = 128  # characters of a name or value
PATIENCE = 600.0  # seconds in which the models of the start are placed
MEMBERS = "members"
VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,39}")


class MembersNodes(JoinedNodes, Protocol):
    """The part of the head's cluster that this actor needs."""

    def members(self) -> Mapping[str, Member]: ...

    def wish(self, workers: int, why: str) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerWish:
    """The wishes of a worker's starter; 0 or empty: as the head's settings have it, or its machine's."""

    memory: int = 0
    threads: int = 0
    device: str = ""
    model_folders: str = ""
    store: str = ""


class WorkerAdmission(Actor):
    """The actor of worker admission (see the module).

    nodes: the cluster. config: of one of the head's own workers. taken: names that the cluster gives to nodes of its own.
    controller: its address. launching: what workers get that the head's launcher starts.
    """

    def __init__(
        self,
        nodes: MembersNodes,
        config: WorkerConfig,
        taken: Collection[str],
        controller: str,
        launching: LaunchSettings | None = None,
    ) -> None:
        self._nodes = nodes
        self._config = config
        self._taken = taken
        self._controller = controller
        self._launching = launching or LaunchSettings()

    @endpoint
    async def look(self, release: str) -> tuple[str, float]:
        """Return why a worker of that release would be refused, or "", and the head's Unix time."""
        return release_refusal(release), time.time()

    @endpoint(concurrent=True)
    async def enlist(
        self, name: str, incarnation: int, release: str, wish: WorkerWish, labels: dict[str, str]
    ) -> WorkerConfig:
        """Take in a worker that has joined, and return its configuration. Raises ValueError with a sentence."""
        member = self._nodes.members().get(name)
        launched = member is not None and member.role == LAUNCHED
        check_joined(self._nodes, name, incarnation, LAUNCHED if launched else WORKER)
        if why := release_refusal(release) or label_refusal(labels):
            raise ValueError(why)
        if launched:
            return await self._enlist_launched(name, incarnation, wish, labels)
        await stand_in(self.node, self._nodes, name, incarnation, self._taken)
        demand = SizeDemand(wish.memory, wish.threads)
        await self.node.ref(self._controller).enlist(name, incarnation, demand, labels, timeout=PATIENCE)
        return joined_config(self._config, name, wish)

    async def _enlist_launched(self, name: str, incarnation: int, wish: WorkerWish, labels: dict[str, str]) -> WorkerConfig:
        """Take in a worker that the launcher started, for which an actor stands already.

        What its command line says wins over the settings.
        """
        memory, threads = self._launching.launch_memory, self._launching.launch_cores
        wish = replace(wish, memory=wish.memory or memory, threads=wish.threads or threads)
        demand = SizeDemand(wish.memory, wish.threads)
        await self.node.ref(self._controller).launched(name, incarnation, demand, labels)
        return replace(joined_config(self._config, name, wish), launched=True)

    @endpoint
    async def back(self, name: str, incarnation: int) -> None:
        """Stand for a member that came back to a new head later than others, or had lost its way to this one (a cast)."""
        await stand_again(self.node, self._nodes, name, incarnation)

    @endpoint
    async def wish(self, workers: int, why: str) -> None:
        """Tell the launcher how many workers an engine should run (a cast)."""
        self._nodes.wish(workers, why)

    @endpoint
    async def leave(self, name: str, incarnation: int, why: str) -> None:
        """Empty a worker that its starter wants to end; then it is dismissed."""
        await self.node.ref(self._controller).leave(name, incarnation, why)


def check_joined(nodes: MembersNodes, name: str, incarnation: int, role: str) -> None:
    """Raise ValueError with a sentence unless that life of a node has joined in this role."""
    member = nodes.members().get(name)
    if member is None or member.id.incarnation != incarnation or member.role != role:
        raise ValueError(f"node {name} has not joined as a {role}; make a join text with --role {role}")


async def stand_in(node: ActorNode, nodes: MembersNodes, name: str, incarnation: int, taken: Collection[str]) -> None:
    """Start the actor that stands for a member at the head. Raises ValueError with a sentence for a name in use.

    taken: names that the cluster gives to nodes of its own.
    """
    if name in taken:
        raise ValueError(f"the name {name} is one that the head gives to its own processes; choose another --name")
    try:
        await node.spawn(JoinedProcess(nodes, incarnation), name=name)
    except ValueError:
        raise ValueError(f"the head has an actor of the name {name}; choose another --name") from None


async def stand_again(node: ActorNode, nodes: JoinedNodes, name: str, incarnation: int) -> None:
    """Start the actor that stands for a member of an earlier head, if none does."""
    with contextlib.suppress(ValueError):  # one stands for it
        await node.spawn(JoinedProcess(nodes, incarnation), name=name)


def joined_config(config: WorkerConfig, name: str, wish: WorkerWish) -> WorkerConfig:
    """Return the configuration of a worker that joined, from one of the head's own workers."""
    worker = replace(
        config.worker,
        threads=wish.threads or config.worker.threads,
        device=wish.device or config.worker.device,
    )
    sources = replace(
        config.sources,
        model_folders=wish.model_folders or config.sources.model_folders,
        store=wish.store or config.sources.store,
    )
    memory = replace(config.worker_memory, memory=wish.memory or config.worker_memory.memory)
    return replace(config, name=name, worker=worker, sources=sources, worker_memory=memory, sharing=1, joined=True)


def release_refusal(release: str) -> str:
    """Return why a release is refused: a sentence, or empty.

    Nodes of releases too far apart have refused each other already (``transport/handshake.py``).
    """
    if VERSION.fullmatch(release):
        return ""
    return f"{release[:64]!r} is no version of blockwright; install {RELEASE} here"


def label_refusal(labels: Mapping[str, str]) -> str:
    """Return why labels are refused: a sentence, or empty."""
    if len(labels) > MOST_LABELS:
        return f"{len(labels)} labels are given; give at most {MOST_LABELS}"
    long = next((name for pair in labels.items() for name in pair if len(name) > LONGEST_LABEL), "")
    return f"the label {long[:40]!r}… is longer than {LONGEST_LABEL} characters; shorten it" if long else ""
