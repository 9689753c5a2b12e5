"""Times of start, restart and failure detection of a cluster of processes, by the cause of the failure.

    python benchmarks/nodes.py [--quick] [--json PATH]

A ``LocalCluster(3)`` with the default heartbeat (0.5 s) and silence (2.5 s), over socket files and over TCP with keys.
``start_ms``: until all three are up, including the forkserver and its imports. ``restart_ms``: SIGKILL, fork, up again. Then
the time until the head declares a node down: ``crash_ms`` after SIGKILL, ``unreachable_ms`` after SIGSTOP (as when a host or
the network is gone), ``hung_ms`` after its event loop got stuck in Python. A wrong cause ends the benchmark. ``import_ms``:
``import blockwright.runtime`` in a new process, compiled before.

``idle``: what one of 12 and one of 36 nodes takes while none has anything to say: open files, and its share of a core in
percent; of 36 over of 12.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time

import harness
from harness import OURS, Bar, Options, Report

from blockwright.runtime import Actor, Down, LocalCluster, endpoint, run

NODES, STUCK_SECONDS = 3, 60.0
WAYS = {"ipc": "", "tcp-with-keys": "tcp://127.0.0.1:0"}


class Stuck(Actor):
    @endpoint
    async def stop_the_loop(self) -> None:
        time.sleep(STUCK_SECONDS)  # noqa: ASYNC251 - what is to be noticed


class WrongCauseError(Exception):
    """A node was declared down for another reason than what was done to it."""


def is_cause(reported: str, cause: str) -> bool:
    """``reported`` may add, behind a colon, what hung."""
    return reported.partition(": ")[0] == cause


async def milliseconds_to_down(cluster: LocalCluster, name: str, how: str, cause: str) -> float:
    """Do it to the node, time the declaration, start the node again."""
    declared: asyncio.Future[tuple[float, Down]] = asyncio.get_running_loop().create_future()
    cluster.node.monitor(name, lambda down: declared.set_result((time.perf_counter(), down)))
    pid, peer = cluster.hub.pid(name), cluster.node.peers()[name]
    while peer.heartbeat_at is None:  # noqa: ASYNC110 - at work, not in the middle of its first words
        await asyncio.sleep(0.01)
    if how == "hung":
        ref = await cluster.node.spawn("nodes:Stuck", name="stuck", on=name)
        ref.stop_the_loop.cast()
        await asyncio.sleep(0)  # it leaves with this tick
        began = time.perf_counter()
    else:
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL if how == "crash" else signal.SIGSTOP)
    at, down = await declared
    if not is_cause(down.cause, cause):
        raise WrongCauseError(f"{name} was declared down as {down.cause!r} instead of {cause!r}")
    await cluster.restart(name)
    return 1000 * (at - began)


def import_milliseconds(runs: int) -> list[float]:
    """Of new processes, one after the other; without the first, which compiles."""
    code = "import time; began = time.perf_counter(); import blockwright.runtime; print(time.perf_counter() - began)"
    with tempfile.TemporaryDirectory() as compiled:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = compiled
        command = [sys.executable, "-c", code]
        outputs = [subprocess.check_output(command, env=environment, text=True) for _ in range(runs + 1)]
    return [1000 * float(output) for output in outputs[1:]]


async def measure(report: Report, runs: int) -> None:
    for case, listen in WAYS.items():
        for _ in range(max(2, runs // 3)):
            began = time.perf_counter()
            async with LocalCluster(NODES, listen=listen):
                report.add(case, OURS, {"start_ms": 1000 * (time.perf_counter() - began)})
        async with LocalCluster(NODES, listen=listen) as cluster:
            for _ in range(runs):
                began = time.perf_counter()
                await cluster.restart("w1")
                report.add(case, OURS, {"restart_ms": 1000 * (time.perf_counter() - began)})
                for how, cause in (("crash", "exited -9"), ("unreachable", "unreachable"), ("hung", "hung")):
                    report.add(case, OURS, {f"{how}_ms": await milliseconds_to_down(cluster, "w1", how, cause)})


async def idle(nodes: int, seconds: float) -> tuple[int, float]:
    """Return the open files of one of so many idle nodes, and its share of a core in percent."""
    async with LocalCluster(nodes) as cluster:
        await asyncio.sleep(2)
        process = f"/proc/{cluster.hub.pid('w1')}"
        before, began = computed(process), time.perf_counter()
        await asyncio.sleep(seconds)
        share = 100 * (computed(process) - before) / (time.perf_counter() - began)
        return len(os.listdir(f"{process}/fd")), share


def computed(process: str) -> float:
    """Return the seconds of processor time of a process, of all of its threads."""
    nanoseconds = 0
    for thread in os.listdir(f"{process}/task"):
        with open(f"{process}/task/{thread}/schedstat") as file:
            nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


async def measure_idle(report: Report, seconds: float) -> None:
    few, many = [await idle(nodes, seconds) for nodes in (12, 36)]
    values = {"files_12": few[0], "files_36": many[0], "share_12": few[1], "share_36": many[1]}
    report.add("idle", OURS, {**values, "files_ratio": many[0] / few[0], "share_ratio": many[1] / few[1]})


@harness.claim("Crashes of nodes are noticed within 50 ms", of="actor-runtime")
def main(options: Options) -> None:
    report = Report("nodes", {"nodes": NODES, "heartbeat": 0.5, "silence": 2.5}, packages=("pyzmq", "uvloop"))
    runs = 3 if options.quick else 10
    for milliseconds in import_milliseconds(runs):
        report.add("import", OURS, {"import_ms": milliseconds})
    run(measure(report, runs))
    run(measure_idle(report, 10.0 if options.quick else 30.0))
    bars = [Bar("import", "import_ms", at_most=150.0), *[Bar(case, "crash_ms", at_most=50.0) for case in WAYS]]
    bars += [Bar("idle", "files_ratio", at_most=1.1), Bar("idle", "share_ratio", at_most=1.4)]
    harness.finish(report, options, bars)


if __name__ == "__main__":
    main(harness.parse(__doc__))
