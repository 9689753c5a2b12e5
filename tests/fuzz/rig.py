"""A node that listens, a peer that behaves, and sockets of those that do not; all in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import zmq

from blockwright.runtime import Node
from blockwright.tests.fuzz.target import Server
from blockwright.tests.waiting import PATIENCE
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Greeting, Lane


class Rig:
    """See the module. Raises what was wrong after each portion."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.errors: list[object] = []
        self._directory = directory
        self._names = 0
        self._served = 0
        self.runner.run(self._start())
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.errors.append(context))
        self.node, self.friend = Node("a", directory=self._directory), Node("b", directory=self._directory)
        await self.node.start()
        await self.friend.start()
        await self.node.spawn(Server(), name="server")
        self.friend.peering.join(self.node.id, self.node.endpoint)
        await self._serve()

    async def _serve(self) -> None:
        """The friend is answered, and nothing was raised."""
        self._served += 1
        assert await self.friend.ref("a/server").echo(self._served, timeout=PATIENCE) == self._served
        assert self.errors == []
        assert not self.node.closed.is_set()

    def serve(self) -> None:
        self.runner.run(self._serve())

    def send(self, messages: Sequence[Sequence[bytes]], greet: bytes | None = None) -> None:
        """From a connection of its own; then see that the friend is served."""
        self.runner.run(self._send([*([[greet]] if greet is not None else []), *messages]))

    async def _send(self, messages: Sequence[Sequence[bytes]]) -> None:
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.linger = 1000  # milliseconds; a node that cuts it off leaves the rest
            dealer.connect(self.node.endpoint)
            for frames in messages:
                while not dealer.poll(0, zmq.POLLOUT):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                dealer.send_multipart(list(frames) or [b""])
        await self._serve()

    def greeting(self) -> bytes:
        """Of a node that was never there before."""
        self._names += 1
        return Greeting(PeerId(f"x{self._names}", 1), self.node.id, Lane.CONTROL).pack()

    def close(self) -> None:
        async def stop() -> None:
            await self.friend.stop()
            await self.node.stop()

        self.runner.run(stop())
        self.runner.close()
        self.context.destroy(linger=0)
