"""Times the channels over which tensors go from worker to worker: shared memory, a socket of this machine, and TCP."""

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

CHANNELS = {"shared-memory": False, "socket": False, "tcp": True}  # whether over TCP
ROUNDS, SMALL = 200, bytes(1024)
LARGE, COUNT = 16 << 20, 8
PATIENCE = 60.0  # seconds until the other process listens


async def measure_links(large: int = LARGE) -> dict[str, dict[str, float]]:
    """By channel: ``latency``, seconds from sending a KiB to its arrival, and ``bandwidth``, bytes per second of large
    messages, of ``large`` bytes, in a row. Each is the median, or the best of a few."""
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
    """The other process; the addresses of its nodes."""
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
    """Half of the time until a message has come back."""
    back: asyncio.Queue[float] = asyncio.Queue()
    node.on_link(Traffic.ACTIVATION, lambda sender, header, buffers: back.put_nowait(time.perf_counter()))
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        node.link(NAME).send(Traffic.ACTIVATION, b"back", [SMALL])
        times.append((await back.get() - began) / 2)
    return statistics.median(times)


async def _bandwidth(link: Link, data: bytes) -> float:
    """Of three times ``COUNT`` messages the fastest."""
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for transfer in [link.send(Traffic.KV, b"", [data]) for _ in range(COUNT)]:
            await transfer
        best = max(best, COUNT * len(data) / (time.perf_counter() - began))
    return best
