"""Nodes that join a head as processes elsewhere would, over the real runtime in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from blockwright.actors.members import MEMBERS, WorkerAdmission
from blockwright.runtime import Node
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.join_text import JoinTexts
from blockwright.tests.waiting import PATIENCE
from blockwright.tests.worker_config import worker_config
from blockwright.transport.curve import NodeKeys

LATER = 1 << 33  # seconds of Unix time


class JoiningNodes:
    """The nodes that a test has join. texts: of the head's keys. ``cluster``: the head, before the first node."""

    cluster: ClusterHead

    def __init__(self, launcher: InProcessLauncher, texts: JoinTexts) -> None:
        self.launcher, self.texts = launcher, texts
        self.nodes: list[Node] = []

    async def node(self, name: str, role: str) -> Node:
        """A node that the head has admitted."""
        text = self.texts.issue(["127.0.0.1:1"], role, LATER)
        admission = self.cluster.join(name, f"{len(self.nodes):064x}", text.ticket)
        transport = self.launcher.network.transport(admission.own)
        beat = {"heartbeat_interval": admission.heartbeat}
        self.nodes.append(node := Node(name, incarnation=admission.own.incarnation, transport=transport, **beat))
        await node.start()
        node.peering.join(admission.head, self.cluster.node.endpoint)
        return node

    async def leave(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            await node.stop()


class JoiningHead(JoiningNodes):
    """A head that answers who joins, and what a test adds to it (``admit``)."""

    def __init__(self) -> None:
        super().__init__(InProcessLauncher(), JoinTexts(NodeKeys.generate()))
        self.cluster = ClusterHead("head", launcher=self.launcher, silence=PATIENCE, join_texts=self.texts)

    async def admit(self) -> None:
        """Spawn the actors that take members in."""
        raise NotImplementedError

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Start the head; stop all at the end."""
        await self.cluster.start()
        await self.cluster.node.spawn(WorkerAdmission(self.cluster, worker_config(), (), ""), name=MEMBERS)
        await self.admit()
        try:
            async with asyncio.timeout(PATIENCE):
                yield self
        finally:
            await self.leave()
            await self.cluster.stop()
