"""Timing of the channels between workers: shared memory, a local socket, and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ...runtime import Node
from ...transport.address import PeerId
from ...transport.link import Link, Traffic
from .link_peer import NAME, TCP

CHANNELS = {"shared-memory": False, "socket": False, "tcp": True}  # True: over TCP
ROUNDS, SMALL = 200, bytes(1024)
LARGE, COUNT = 16 << 20, 8
PATIENCE = 60.0  # seconds to wait until the other process listens


async def measure_links(large: int = LARGE) -> dict[str, dict[str, float]]:
    """Return latency and bandwidth by channel.

    ``latency`` is the median number of seconds from sending a KiB to its arrival. ``bandwidth`` is in bytes per second, the
    best of a few series of messages of ``large`` bytes each.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="blockwright-") as name:
        directory = Path(name)
        async with _peer(directory) as (local, far):
            for kind, tcp in CHANNELS.items():
                node = Node(kind, listen=TCP) if tcp else Node(kind, directory=directory)
                await node.start()
                try:
                    node.tensor_links.share = kind == "shared-memory"
                    node.peering.greet(PeerId(NAME, 1), far if tcp else local)
                    found[kind] = {
                        "latency": await _latency(node),
                        "bandwidth": await _bandwidth(node.link(NAME), bytes(large)),
                    }
                finally:
                    await node.stop()
    return found


@contextlib.asynccontextmanager
async def _peer(directory: Path) -> AsyncIterator[tuple[str, str]]:
    """Run the other process. Yield the addresses of its nodes."""
    pipe = asyncio.subprocess.PIPE
    module = "blockwright.actors.profiling.link_peer"
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, str(directory), stdin=pipe)
    try:
        async with asyncio.timeout(PATIENCE):
            while not (directory / "addresses").exists():
                if child.returncode is not None:
                    raise RuntimeError(f"the other end of the links ended with {child.returncode}")
                await asyncio.sleep(0.01)
        local, far = (directory / "addresses").read_text().split()
        yield local, far
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def _latency(node: Node) -> float:
    """Return the median of half the round-trip time."""
    back: asyncio.Queue[float] = asyncio.Queue()
    node.on_link(Traffic.ACTIVATION, lambda sender, header, buffers: back.put_nowait(time.perf_counter()))
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        node.link(NAME).send(Traffic.ACTIVATION, b"back", [SMALL])
        times.append((await back.get() - began) / 2)
    return statistics.median(times)


async def _bandwidth(link: Link, data: bytes) -> float:
    """Send ``COUNT`` messages in a row, three times. Return the best rate."""
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for transfer in [link.send(Traffic.KV, b"", [data]) for _ in range(COUNT)]:
            await transfer
        best = max(best, COUNT * len(data) / (time.perf_counter() - began))
    return best
