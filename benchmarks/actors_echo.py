"""The callees of ``actors.py``: an actor of ours, and bare pyzmq servers in a process of their own.

    python actors_echo.py DIRECTORY

binds three pyzmq ROUTER sockets: blocking on ipc, blocking on tcp, and one of zmq.asyncio on ipc. Every echo reads one byte
of every page of a message, and answers small messages with themselves.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import zmq
import zmq.asyncio

from blockwright.runtime import Actor, endpoint

SMALL = 4096  # bytes; what is larger is touched and answered with a number


def touch(data: Any) -> int:
    """One byte of every page is read."""
    return int(np.frombuffer(data, np.uint8)[::4096].sum(dtype=np.int64))


class Echo(Actor):
    """Calls, casts and a stream."""

    def __init__(self) -> None:
        self.casts = 0

    @endpoint
    async def echo(self, data: bytes) -> bytes:
        return data

    @endpoint
    async def touch(self, array: np.ndarray) -> int:
        return touch(array)

    @endpoint
    async def note(self, data: bytes) -> None:
        self.casts += 1

    @endpoint
    async def noted(self) -> int:
        return self.casts

    @endpoint
    async def items(self, count: int, data: bytes) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield data


def answer(data: Any) -> bytes:
    return bytes(data) if len(data) < SMALL else b"%d" % touch(data)


def serve(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, address_file: Path | None = None) -> None:
    """Blocking, in a thread of its own, for ever."""
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint)
    if address_file is not None:
        begun = address_file.with_suffix(".part")
        begun.write_text(str(socket.getsockopt_string(zmq.LAST_ENDPOINT)))
        begun.rename(address_file)  # who waits for the file finds it whole
    while True:
        who, data = socket.recv_multipart()
        socket.send_multipart([who, answer(data)])


async def serve_async(endpoint: str) -> None:
    socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        who, data = await socket.recv_multipart()
        await socket.send_multipart([who, answer(data)])


def main(directory: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    for address, address_file in ((f"ipc://{directory}/zmq-blocking", None), ("tcp://127.0.0.1:*", directory / "zmq-tcp")):
        threading.Thread(target=serve, args=(context, address, address_file), daemon=True).start()
    asyncio.run(serve_async(f"ipc://{directory}/zmq-asyncio"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
