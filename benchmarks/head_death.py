"""Death of the head under streams: the pauses that clients notice, and the time until the next head serves ``/admin``.

    python benchmarks/head_death.py [--quick] [--json PATH]

Two workers serve model S behind two gateways that are processes, with ``orphan_grace``. 32 streams and 8 requests that are
not streamed run; when each stream has a few tokens, the head gets SIGKILL (``kill``) or SIGSTOP (``stop``, which is noticed
after ``silence``), in turn with a worker that gets SIGKILL. ``gap_ms``: longest time between two chunks from then on, of any
stream for the head, of the streams on its route for the worker; ``undisturbed``: of any stream when nothing dies. A stream
or request that does not complete ends the benchmark. ``admin_ms``: until ``/admin/cluster`` answers 200, from the signal,
and from the start of a server of the same settings (``cold start``).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import failover
import harness
import psutil
from failover import NEW_TOKENS, PROMPT_TOKENS, STREAMS, WAIT_SECONDS, Watched
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import START_SECONDS, Served, ServerError, answered, free_port, launched, served, stop

WHOLE = 8  # requests that are not streamed
WORKER = "a worker's death"
COLD, QUIET = "cold start", "undisturbed"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
CALM = 12.0  # seconds between two deaths, so that each is the first in a row
VALUES = {"gateways": "2", "gateway_in_head": "no", "orphan_grace": "300"}
ARGUMENTS = ["--workers", "2", *(word for name, value in VALUES.items() for word in ("--set", f"{name}={value}"))]
BARS = [
    *(Bar(f"head/{how}", "gap_ms", WORKER, at_most=1.0) for how in SIGNALS),
    Bar("head/kill", "admin_ms", COLD, at_most=0.5),
]


async def cold_start(model: Path) -> float:
    """Start a server; milliseconds until it serves ``/admin``."""
    port, began = free_port(), time.monotonic()
    command = [sys.executable, "-m", "blockwright", "serve", str(model), "--port", str(port), *ARGUMENTS]
    with tempfile.TemporaryFile() as log:
        process = launched(command, log)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                await answered(Served(process, session), "/admin/cluster", began + START_SECONDS)
                return 1000 * (time.monotonic() - began)
        finally:
            stop(process)


def head_of(server: Served) -> int:
    """The pid of the head; 0 while there is none."""
    for child in psutil.Process(server.process.pid).children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if words and words[0].startswith("blockwright: head"):
            return child.pid
    return 0


async def round_of(server: Served, seed: int, how: signal.Signals | None) -> dict[str, float]:
    """Send the head a signal under load, or none; what clients and operators notice."""
    streams = [Watched() for _ in range(STREAMS)]
    batch = prompts("S", STREAMS + WHOLE, PROMPT_TOKENS, seed)
    jobs = [asyncio.create_task(one.follow(server, prompt)) for one, prompt in zip(streams, batch, strict=False)]
    jobs += [asyncio.create_task(server.complete(prompt, NEW_TOKENS)) for prompt in batch[STREAMS:]]
    await asyncio.gather(*(stream.begun.wait() for stream in streams))
    former, moment = head_of(server), time.monotonic()
    found = {}
    if how is not None:
        os.kill(former, how)
        found["admin_ms"] = 1000 * (await next_head(server, former) - moment)
    await asyncio.gather(*jobs)
    return found | {"gap_ms": 1000 * max(stream.longest_pause(moment) for stream in streams)}


async def next_head(server: Served, former: int) -> float:
    """When a head other than ``former`` first served ``/admin``."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if head_of(server) not in (0, former):
            await answered(server, "/admin/cluster", until)
            return time.monotonic()
        await asyncio.sleep(0.01)
    raise ServerError(f"no other head came within {WAIT_SECONDS:.0f} s")


async def measure(report: Report, runs: int, folder: Path) -> None:
    model = make_model("S", "bf16", folder / "S")
    for run in range(runs):
        cold = await cold_start(model)
        async with served(model, *ARGUMENTS) as server:
            for how, sent in SIGNALS.items():
                case = f"head/{how}"
                await failover.recovered(server, 0)
                report.add(case, QUIET, {"gap_ms": (await round_of(server, run, None))["gap_ms"]})
                report.add(case, OURS, await round_of(server, run, sent))
                await failover.recovered(server, 0)
                await asyncio.sleep(CALM)
                report.add(case, WORKER, {"gap_ms": await failover.round_of(server, run)})
                report.add(case, COLD, {"admin_ms": cold})


@harness.claim(
    "The pauses at a head's death beside those at a worker's, and the time until /admin serves again, are measured",
    of="faults",
)
def main(options: Options) -> None:
    settings = {
        "streams": STREAMS,
        "whole": WHOLE,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "model": "S/bf16",
    }
    report = Report("head_death", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, 1 if options.quick else 3, Path(folder)))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
