"""Tensor links between two processes: the effect of priorities, and the speed of transfers.

    python benchmarks/links.py [--quick] [--json PATH]

``link/priorities``: 64 KiB activations on a link limited to 200 MB/s while 256 MiB of KV move over it (frames over ipc);
one-way latency, also in chunk times. Every run is printed and stored, with the longest delay in the wake-up of the sender
itself. ``link/none``: the same with one class for all. ``links/KIND/SIZE``: messages of a size in a row, until all are
acknowledged. ``buffers/64MiB``: a call with an array of which the callee reads every page, beside bare pyzmq and one copy
within a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import zmq
from harness import OURS, Bar, Options, Report
from links_peer import Sink

from blockwright.actors.worker.outbox import open_device_memory
from blockwright.runtime import Node
from blockwright.transport.address import PeerId
from blockwright.transport.link import Link, Traffic

RATE = 200e6  # bytes per second
LOAD, PART = 256 << 20, 32 << 20  # bytes of KV, and of each message of it
ACTIVATION = 64 << 10  # bytes
PAUSE = 0.004  # seconds between activations, on average
B = PeerId("b", 1)
LARGE = 64 << 20
BARS = [
    Bar("link/priorities", "p99_chunks", at_most=2.5),
    Bar("link/priorities", "share_of_none", at_most=0.1),
    Bar("buffers/64MiB", "gib_per_s", peer="pyzmq", at_least=5.0),
    Bar("buffers/64MiB", "gib_per_s", peer="memcpy", at_least=0.6),
]


@dataclass(slots=True)
class Rig:
    """Nodes of this process, one for each kind of link to the other process."""

    directory: Path
    links: dict[str, Link]
    sink: Sink  # reached through the node that shares memory


@contextlib.asynccontextmanager
async def rig(kinds: Sequence[str] = ("shared-memory", "frames"), device: str = "") -> AsyncIterator[Rig]:
    """Starts the other process, opens a link of each kind, and ends all. ``device``: both processes use its memory."""
    with tempfile.TemporaryDirectory(prefix="blockwright-links-") as name:
        directory = Path(name)
        peer = Path(__file__).with_name("links_peer.py")
        child = await asyncio.create_subprocess_exec(sys.executable, str(peer), name, device)
        nodes: list[Node] = []
        try:
            await until(lambda: (directory / "ready").exists())  # its socket file comes before it listens
            links = {}
            for kind in kinds:
                node = Node(f"a-{kind}", directory=directory)
                nodes.append(node)
                await node.start()
                node.tensor_links.share = kind != "frames"
                if (memory := open_device_memory(device, node.clock)) is not None:
                    node.offer_device(memory)
                node.peering.greet(B, f"ipc://{directory}/b-1.sock")
                links[kind] = node.link("b")
            for kind, link in links.items():
                await link.send(Traffic.KV)
                assert link.kind == kind, f"{link.kind} where {kind} was to be measured"
            yield Rig(directory, links, nodes[0].ref("b/sink", Sink))
        finally:
            for node in nodes:
                await node.stop()
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("the other process did not start within a minute")


async def under_load(
    link: Link, sink: Sink, kind: Traffic, load: int, rate: float | None = RATE
) -> tuple[list[float], float, float]:
    """One-way seconds of activations sent as ``kind`` while ``load`` bytes of KV move; the time of a chunk; and by how much
    this process woke too late from its pauses at most: what the machine, not the link, took."""
    await sink.taken()
    noise = random.Random(1)
    payload = bytes(ACTIVATION)
    part = bytes(PART)
    link.rate = rate
    moving = [link.send(Traffic.KV, b"", [part]) for _ in range(load // PART)]
    sent = 0
    chunks = []
    stalled = 0.0
    while not moving[-1].done:
        due = time.monotonic() + (pause := noise.uniform(0.0, 2 * PAUSE))
        await asyncio.sleep(pause)
        stalled = max(stalled, time.monotonic() - due)
        link.send(kind, repr(time.monotonic()).encode(), [payload])
        sent += 1
        seen = link.inspect()
        chunks.append(seen["chunk_bytes"] / (rate or seen["bandwidth"]))
    link.rate = None
    await link.send(kind)
    latencies = await sink.taken()
    assert len(latencies) == sent, f"{sent} activations were sent and {len(latencies)} came"
    return latencies, statistics.median(chunks), stalled


async def measure_priorities(report: Report, links: Mapping[str, Link], sink: Sink, *, runs: int, load: int = LOAD) -> None:
    """``link/priorities`` and ``link/none``, in turn; also called by ``actors.py``."""
    link = links["frames"]
    spread: list[dict[str, float]] = []  # of every run: the median of a few hides the one that was slow
    for _ in range(runs):
        ours, chunk, stalled = await under_load(link, sink, Traffic.ACTIVATION, load)
        none, _, _ = await under_load(link, sink, Traffic.KV, load)
        p99, p99_none = (statistics.quantiles(times, n=100)[98] for times in (ours, none))
        spread.append(
            {"p99_chunks": p99 / chunk, "p99_us": 1e6 * p99, "max_us": 1e6 * max(ours), "stalled_us": 1e6 * stalled}
        )
        report.add("link/priorities", OURS, {"p50_us": 1e6 * statistics.median(ours), "p99_us": 1e6 * p99})
        report.add("link/none", OURS, {"p50_us": 1e6 * statistics.median(none), "p99_us": 1e6 * p99_none})
        report.add(
            "link/priorities", OURS, {"chunk_us": 1e6 * chunk, "p99_chunks": p99 / chunk, "share_of_none": p99 / p99_none}
        )
    report.settings["priorities_of_each_run"] = spread
    for run in spread:
        print("link/priorities  " + "  ".join(f"{name} {value:.4g}" for name, value in run.items()))


async def measure_throughput(report: Report, links: Mapping[str, Link], *, runs: int) -> None:
    for name, size, count in (("64KiB", 64 << 10, 200), ("1MiB", 1 << 20, 64), ("64MiB", LARGE, 4)):
        data = bytes(size)
        for _ in range(runs):
            for kind, link in links.items():
                began = time.perf_counter()
                for transfer in [link.send(Traffic.KV, b"", [data]) for _ in range(count)]:
                    await transfer
                seconds = time.perf_counter() - began
                shown = {"gib_per_s": count * size / seconds / 2**30, "chunk_bytes": float(link.inspect()["chunk_bytes"])}
                report.add(f"links/{kind}/{name}", OURS, shown)


async def measure_buffers(report: Report, rig: Rig, *, runs: int) -> None:
    """A call with 64 MiB beside pyzmq and a copy, in turn."""
    array, target = np.ones(LARGE, np.uint8), np.zeros(LARGE, np.uint8)
    data = array.data.cast("B")
    context = zmq.Context()
    sockets = {}
    for name, subject in (("copy", "pyzmq"), ("share", "pyzmq copy=False")):
        sockets[subject] = context.socket(zmq.DEALER)
        sockets[subject].bind(f"ipc://{rig.directory}/zmq-{name}")
    try:
        for run in range(runs + 2):
            times: dict[str, float] = {}
            began = time.perf_counter()
            await rig.sink.touch(array)
            times[OURS] = time.perf_counter() - began
            for subject, socket in sockets.items():
                began = time.perf_counter()
                socket.send(data, copy=True) if subject == "pyzmq" else socket.send(data, copy=False)
                socket.recv()
                times[subject] = time.perf_counter() - began
            began = time.perf_counter()
            np.copyto(target, array)
            times["memcpy"] = time.perf_counter() - began
            if run >= 2:  # the first of each touch fresh memory
                for subject, seconds in times.items():
                    report.add("buffers/64MiB", subject, {"gib_per_s": LARGE / seconds / 2**30})
    finally:
        context.destroy(linger=0)


async def measure(report: Report, *, quick: bool) -> None:
    async with rig() as made:
        await measure_priorities(report, made.links, made.sink, runs=2 if quick else 11)
        await measure_throughput(report, made.links, runs=2 if quick else 7)
        await measure_buffers(report, made, runs=5 if quick else 15)


@harness.claim("Activations overtake KV and parameters on a link and wait for two chunks at most", of="actor-runtime")
def main(options: Options, bars: Sequence[Bar] = BARS) -> None:
    settings: dict[str, Any] = {"rate": RATE, "load": LOAD, "activation": ACTIVATION, "pause": PAUSE}
    report = Report("links", settings, ("pyzmq", "numpy"))
    asyncio.run(measure(report, quick=options.quick))
    harness.finish(report, options, bars)


if __name__ == "__main__":
    main(harness.parse(__doc__))
