"""Benchmark of the actor runtime beside bare pyzmq, xoscar and an older checkout: calls, casts, streams, links.

    python benchmarks/actors.py [--quick] [--json PATH] [--beside CHECKOUT]

Every round measures every subject once, in turn; the echo reads one byte of every page of a large argument. ``pyzmq`` is a
blocking DEALER and ROUTER (large messages with copy=True), ``pyzmq-asyncio`` the same with zmq.asyncio, ``asyncio.Queue`` a
round trip through two queues, ``memcpy`` a copy within one process, ``beside`` the same actors in a checkout that has a
``.venv`` of its own. Ours, ``beside`` and pyzmq stay up and alternate measurement by measurement, so that a temporary
disturbance of the machine affects all of them. xoscar runs in a virtual environment that this script creates in ``.peers/``;
if it cannot be created, a row says so. Over tcp our nodes encrypt (CURVE), pyzmq does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness
import links
import numpy as np
import zmq
import zmq.asyncio
from actors_timing import CALLERS, LARGE_CALLS, SIZES, SMALL_CALLS, WARM, bulk, percentiles, timed, timed_blocking
from harness import BESIDE, ROOT, Bar, Options, Report

from blockwright.runtime import run

HERE = Path(__file__).parent
PEERS = {"xoscar": "xoscar==0.12.2"}  # the release of the comparison
PEER_SECONDS = 600.0
BARS = [
    Bar("call/inproc/100B", "p50_us", peer="asyncio.Queue", at_most=3.0),
    Bar("call/ipc/100B", "p50_us", peer="pyzmq", at_most=1.8),
    Bar("call/ipc/100B", "p50_us", peer="xoscar", at_most=1.0),
    Bar("call/ipc/64MiB", "gib_per_s", peer="pyzmq", at_least=5.0),
    Bar("call/ipc/64MiB", "gib_per_s", peer="memcpy", at_least=0.6),
    *(bar for bar in links.BARS if bar.case.startswith("link/")),
]
BESIDE_BARS = [
    Bar("calls/256callers/ipc", "per_s", peer=BESIDE, at_least=0.9),
    Bar("stream/ipc/100B", "per_s", peer=BESIDE, at_least=0.9),
]


# ---- ours, and another checkout


class Subject:
    """``actors_ours.py`` under some interpreter."""

    def __init__(self, name: str, python: Path) -> None:
        self.name = name
        command = [str(python), str(HERE / "actors_ours.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turns = self._line().split()

    def take(self, turn: str, part: float, report: Report) -> None:
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.write(f"{turn} {part}\n")
        self._process.stdin.flush()
        while line := self._line():
            entry = json.loads(line)
            report.add(entry["case"], self.name, entry["metrics"])

    def close(self) -> None:
        with self._process:  # which closes its pipes; the end of its input is the end of it
            pass

    def _line(self) -> str:
        assert self._process.stdout is not None, "a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        return line.strip()


def count(part: float) -> int:
    return max(300, int(SMALL_CALLS * part))


def large(name: str, part: float) -> int:
    return max(3, int(LARGE_CALLS[name] * part))


# ---- bare


async def queues(report: Report, part: float) -> None:
    """A round trip through two queues, as an actor would do it by hand."""
    there: asyncio.Queue[bytes] = asyncio.Queue()
    back: asyncio.Queue[bytes] = asyncio.Queue()

    async def actor() -> None:
        while True:
            back.put_nowait(await there.get())

    async def call() -> bytes:
        there.put_nowait(b"")
        return await back.get()

    task = asyncio.create_task(actor())
    report.add("call/inproc/100B", "asyncio.Queue", percentiles(await timed(call, count(part), WARM)))
    task.cancel()


def pyzmq(report: Report, directory: Path, part: float) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    data = bytes(100)
    for transport, endpoint in (("ipc", f"ipc://{directory}/zmq-blocking"), ("tcp", (directory / "zmq-tcp").read_text())):
        socket = context.socket(zmq.DEALER)
        socket.connect(endpoint)

        def call(message: Any = data, socket: zmq.Socket[bytes] = socket) -> None:
            socket.send(message)
            socket.recv()

        report.add(f"call/{transport}/100B", "pyzmq", percentiles(timed_blocking(call, count(part), WARM)))
        for name, size in SIZES.items():
            message = np.ones(size, np.uint8).data
            times = timed_blocking(lambda message=message, call=call: call(message), large(name, part), 2)  # type: ignore[misc]
            report.add(f"call/{transport}/{name}", "pyzmq", bulk(times, size))
        if transport == "ipc":
            for callers, total in CALLERS.items():
                report.add(f"calls/{callers}callers/ipc", "pyzmq", outstanding(socket, data, callers, int(total * part)))
    context.destroy(linger=0)


def outstanding(socket: zmq.Socket[bytes], data: bytes, callers: int, total: int) -> dict[str, float]:
    began = time.perf_counter()
    for _ in range(callers):
        socket.send(data)
    for number in range(total):
        socket.recv()
        if number < total - callers:
            socket.send(data)
    return {"per_s": total / (time.perf_counter() - began)}


async def pyzmq_asyncio(report: Report, directory: Path, part: float) -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{directory}/zmq-asyncio")

    async def call() -> None:
        await socket.send(bytes(100))
        await socket.recv()

    report.add("call/ipc/100B", "pyzmq-asyncio", percentiles(await timed(call, count(part), WARM)))
    context.destroy(linger=0)


def memcpy(report: Report, part: float) -> None:
    size = SIZES["64MiB"]
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    report.add(
        "call/ipc/64MiB", "memcpy", bulk(timed_blocking(lambda: np.copyto(target, source), large("64MiB", part), 2), size)
    )


# ---- peers in environments of their own


def environment(name: str) -> Path:
    """Its interpreter; made when it is not there. Raises CalledProcessError, OSError."""
    folder = ROOT / ".peers" / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEERS[name], "numpy"], check=True)
        (folder / "complete").touch()
    return python


def peer(report: Report, name: str, python: Path, part: float) -> None:
    command = [str(python), str(HERE / "peers" / f"{name}_actors.py"), str(part)]
    clean = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_SECONDS, check=False, env=clean)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            report.add(entry["case"], name, entry["metrics"])
    if done.returncode:
        report.miss("call/ipc/100B", name, f"ended with {done.returncode}: {done.stderr.strip()[-200:]}")


@contextmanager
def bare_servers() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bw-actors-") as name:
        directory = Path(name)
        process = subprocess.Popen([sys.executable, str(HERE / "actors_echo.py"), name])
        try:
            while not all((directory / f"zmq-{kind}").exists() for kind in ("blocking", "tcp", "asyncio")):
                if process.poll() is not None:
                    raise RuntimeError("the pyzmq servers did not start")
                time.sleep(0.01)
            yield directory
        finally:
            process.kill()
            process.wait()


@harness.claim("A call between processes is faster than one of xoscar", of="actor-runtime")
def main(options: Options, bars: Sequence[Bar] = BARS) -> None:
    part, rounds = (0.2, 1) if options.quick else (1.0, 5)
    report = Report(
        "actors", {"rounds": rounds, "part": part, "loop": "uvloop", "peers": PEERS}, ("pyzmq", "uvloop", "numpy")
    )
    pythons = {}
    for name in PEERS:
        try:
            pythons[name] = environment(name)
        except (subprocess.CalledProcessError, OSError) as error:
            report.miss("call/ipc/100B", name, f"its environment could not be made: {error}")
    with ExitStack() as stack:
        subjects = [Subject(name, python) for name, python in harness.interpreters(options).items()]
        for subject in subjects:
            stack.callback(subject.close)
        directory = stack.enter_context(bare_servers())
        for _ in range(rounds):
            run(queues(report, part))
            for turn in subjects[0].turns:
                for subject in subjects:
                    subject.take(turn, part, report)
                if turn == "ipc":
                    pyzmq(report, directory, part)
            run(pyzmq_asyncio(report, directory, part))
            memcpy(report, part)
            for name, python in pythons.items():
                peer(report, name, python, part)
            subjects.reverse()
    run(priorities(report, 1 if options.quick else 3))
    harness.finish(report, options, [*bars, *(BESIDE_BARS if options.beside else ())])


async def priorities(report: Report, runs: int) -> None:
    async with links.rig() as rig:
        await links.measure_priorities(report, rig.links, rig.sink, runs=runs)


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
