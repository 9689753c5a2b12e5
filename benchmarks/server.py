"""A served model for a benchmark: a process to start, to query over HTTP, to measure its memory, and to stop.

Only the command line and the HTTP API are used. Prompts are token ids and answers ignore the end of sequence, so that every
run makes the same number of tokens. Times are seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
import psutil

START_SECONDS = 900.0  # a model of billions of parameters, on a busy machine


class ServerError(Exception):
    """The server did not do what a benchmark needs; the text says what it printed."""


@dataclass(slots=True)
class Served:
    """A running server. ``stages`` are seconds from the start of its process."""

    process: subprocess.Popen[bytes]
    session: aiohttp.ClientSession
    base: str = ""  # where it listens
    model: str = ""
    stages: dict[str, float] = field(default_factory=dict)

    async def get(self, path: str) -> Any:
        async with self.session.get(path) as answer:
            if answer.status != 200:
                raise ServerError(f"GET {path}: {answer.status} {(await answer.text())[:300]}")
            return await answer.json()

    def body(self, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0}
        return {**asked, "ignore_eos": True, **more}

    async def complete(self, prompt: Sequence[int], tokens: int) -> None:
        """One answer of exactly ``tokens`` tokens, not streamed."""
        async with self.session.post("/v1/completions", json=self.body(prompt, tokens)) as answer:
            if answer.status != 200:
                raise ServerError(f"completion: {answer.status} {(await answer.text())[:300]}")
            made = (await answer.json())["usage"]["completion_tokens"]
        if made != tokens:
            raise ServerError(f"asked for {tokens} tokens, got {made}")

    async def chunks(self, prompt: Sequence[int], tokens: int) -> AsyncIterator[tuple[float, list[int], str]]:
        """(time, its tokens, request id) of each chunk with tokens, on the monotonic clock."""
        more = {"stream": True, "return_token_ids": True}
        async with self.session.post("/v1/completions", json=self.body(prompt, tokens, **more)) as answer:
            if answer.status != 200:
                raise ServerError(f"stream: {answer.status} {(await answer.text())[:300]}")
            made = 0
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ServerError(f"stream: {chunk['error']}")
                if news := [token for choice in chunk["choices"] for token in choice.get("token_ids") or ()]:
                    made += len(news)
                    yield time.monotonic(), news, chunk["id"]
        if made != tokens:
            raise ServerError(f"the stream ended after {made} of {tokens} tokens")

    async def stream(self, prompt: Sequence[int], tokens: int) -> AsyncIterator[tuple[float, int, str]]:
        """As ``chunks``, with the number of tokens so far."""
        made = 0
        async for at, news, request in self.chunks(prompt, tokens):
            made += len(news)
            yield at, made, request

    def peak_rss_mb(self) -> float:
        """Sum of the peak resident sizes of the server and everything below it."""
        head = psutil.Process(self.process.pid)
        return sum(peak_rss_mb(process.pid) for process in (head, *head.children(recursive=True)))

    def head_cpu_seconds(self) -> float:
        """Processor time of the processes that hold the control plane and the gateways, their threads included."""
        head = psutil.Process(self.process.pid)
        gateways = [child for child in head.children(recursive=True) if child.name().startswith("bw-g")]
        return float(sum(used.user + used.system for used in (process.cpu_times() for process in (head, *gateways))))

    def worker_cpu_seconds(self) -> float:
        """Processor time of the processes of all workers, their threads included."""
        every = psutil.Process(self.process.pid).children(recursive=True)
        workers = [child for child in every if child.name().startswith("bw-w")]
        if not workers:
            raise ServerError("the server has no worker process")
        return sum(processor_seconds(worker.pid) for worker in workers)

    async def sweep_seconds(self) -> tuple[float, float]:
        """(whole sweeps, inside kernels) since the start, over all workers."""
        workers = (await self.get("/admin/cluster"))["workers"]
        whole, kernels = (sum(w["counters"][name] for w in workers) for name in ("sweep_seconds", "kernel_seconds"))
        return float(whole), float(kernels)


def processor_seconds(pid: int) -> float:
    """Processor time of a process, to the nanosecond: Linux has a clock for each of them."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_rss_mb(pid: int) -> float:
    """VmHWM of a process in MB; 0 when it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def served(folder: Path, *arguments: str, python: Path | str = sys.executable) -> AsyncIterator[Served]:
    """Start ``blockwright serve FOLDER ...``, wait until it is ready, and stop it at the end."""
    port, began = free_port(), time.monotonic()
    command = [str(python), "-m", "blockwright", "serve", str(folder), "--port", str(port), *arguments]
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    with tempfile.TemporaryFile() as log:
        process = launched(command, log)
        try:
            base = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession(base, timeout=timeout, connector=connector) as session:
                server = Served(process, session, base)
                for stage in ("live", "ready"):
                    await answered(server, f"/health/{stage}", began + START_SECONDS)
                    server.stages[stage] = time.monotonic() - began
                server.model = (await server.get("/v1/models"))["data"][0]["id"]
                await server.complete([1, 2, 3], 1)
                server.stages["first_token"] = time.monotonic() - began
                yield server
        except ServerError as problem:
            log.seek(0)
            raise ServerError(f"{problem}\n{log.read().decode(errors='replace')[-3000:]}") from None
        finally:
            stop(process)


def launched(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A session of its own, so that Ctrl-C reaches the benchmark first."""
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


async def answered(server: Served, path: str, until: float) -> None:
    """Return when GET ``path`` says 200."""
    while time.monotonic() < until:
        if server.process.poll() is not None:
            raise ServerError(f"the server ended with status {server.process.returncode}")
        with suppress(aiohttp.ClientError, ServerError):
            await server.get(path)
            return
        await asyncio.sleep(0.01)
    raise ServerError(f"{path} was not 200 within {START_SECONDS:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL for what is left after a while."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
