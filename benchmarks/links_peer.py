"""The other process of ``links.py``: a node "b" that receives link traffic and calls, and an echo on a bare pyzmq socket.

    python links_peer.py DIRECTORY [DEVICE]

With a device ("cuda:0", "cuda-mirror") tensors also travel through its memory.

Times are on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from blockwright.actors.worker.outbox import open_device_memory
from blockwright.runtime import Actor, Node, endpoint
from blockwright.transport.wire import Traffic


class Sink(Actor):
    """What came over links."""

    def __init__(self) -> None:
        self.latencies: list[float] = []

    async def on_start(self) -> None:
        for kind in Traffic:
            self.node.on_link(kind, self._take)

    def _take(self, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        if header:  # when it was sent; what has none is the load
            self.latencies.append(time.monotonic() - float(header))

    @endpoint
    async def taken(self) -> list[float]:
        """Seconds from send to receipt of each message that says when it was sent, since the last time."""
        latencies, self.latencies = self.latencies, []
        return latencies

    @endpoint
    async def touch(self, array: np.ndarray) -> int:
        return touch(array)


def touch(array: np.ndarray[Any, Any]) -> int:
    """One byte of every page is read."""
    return int(array[::4096].sum(dtype=np.int64))


def echo(endpoint: str, copy: bool) -> None:
    """Reads each message as ``touch`` does and answers; runs in a thread of its own, for ever."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(endpoint)
    while True:
        data = socket.recv() if copy else socket.recv(copy=False).buffer
        socket.send(b"%d" % touch(np.frombuffer(data, np.uint8)))
        del data


async def main(directory: str, device: str = "") -> None:
    for name, copy in (("copy", True), ("share", False)):
        threading.Thread(target=echo, args=(f"ipc://{directory}/zmq-{name}", copy), daemon=True).start()
    node = Node("b", directory=Path(directory))
    await node.start()
    if (memory := open_device_memory(device, node.clock)) is not None:
        node.offer_device(memory)
    await node.spawn(Sink(), name="sink")
    (Path(directory) / "ready").write_bytes(b"")
    await node.closed.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
