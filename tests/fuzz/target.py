"""What rubbish is fed to: a node with actors, a peer that behaves, and a peer that does not; all in one process.

Owns the check after each portion: nothing was raised, and the well-behaved peer is served as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.waiting import PATIENCE
from blockwright.transport.address import PeerId
from blockwright.transport.loopback import Network

ATTACKER, STRANGER = PeerId("x", 1), PeerId("stranger", 7)
WAYS = ("message", "link", "shared")


@dataclass(frozen=True)
class Point:
    x: float
    name: str


class Server(Actor):
    """Endpoints of every kind, for everybody."""

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def typed(self, point: Point, numbers: list[int], table: dict[str, float]) -> Point:
        return point

    @endpoint(urgent=True)
    async def array(self, values: np.ndarray) -> np.ndarray:
        return values

    @endpoint(concurrent=True)
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @endpoint
    async def count(self, stop: int) -> AsyncIterator[int]:
        for number in range(stop):
            yield number


class Target:
    """See the module. Use ``with``."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.errors: list[dict[str, Any]] = []
        self._served = 0

    def __enter__(self) -> Target:
        self._runner.__enter__()
        self._runner.run(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._stop())
        self._runner.__exit__(None, None, None)

    def feed(self, sender: PeerId, body: bytes, buffers: Sequence[bytes] = (), way: str = "message") -> None:
        """Let it arrive, as if a transport had received it; then see that the others are served. Raises what was wrong."""
        self.feed_all([body], sender, buffers, way)

    def feed_all(
        self, bodies: Sequence[bytes], sender: PeerId = ATTACKER, buffers: Sequence[bytes] = (), way: str = "message"
    ) -> None:
        """Likewise, all at once."""
        self._runner.run(self._feed(sender, bodies, [memoryview(b) for b in buffers], way))

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.errors.append(context))
        network = Network()
        self.node, self.friend, self.attacker = [
            Node(name, transport=network.transport(PeerId(name, 1)), heartbeat_interval=3600.0) for name in ("a", "b", "x")
        ]
        for node in (self.node, self.friend, self.attacker):
            await node.start()
        for peer in (self.friend, self.attacker):
            peer.peering.join(self.node.id, self.node.endpoint)
        await self.node.spawn(Server(), name="server", mailbox=64)
        while len(self.node.peers()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _stop(self) -> None:
        for node in (self.friend, self.attacker, self.node):
            await node.stop()

    async def _feed(self, sender: PeerId, bodies: Sequence[bytes], buffers: list[memoryview], way: str) -> None:
        reception = self.node.parts.inbound
        for body in bodies:
            if way == "message":
                reception.on_message(sender, body, buffers)
            elif way == "link":
                reception.on_link(sender, [memoryview(body), *buffers])
            else:
                reception.on_shared(sender, body, body, buffers)
        self._served += 1
        answer = await self.friend.ref("a/server").echo([self._served, "well"], timeout=PATIENCE)
        assert answer == [self._served, "well"]
        assert self.errors == []
        assert self.node.open
        assert not self.node.closed.is_set()

    def held(self) -> int:
        """How many things the node holds for the attacker."""
        peer = self.node.table.find(ATTACKER)
        return 0 if peer is None else len(peer.inbound) + len(peer.pending) + len(peer.streams)
