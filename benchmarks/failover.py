"""Interruption of clients when a process is killed: pauses of streams for a dead worker, silence for a dead gateway.

    python benchmarks/failover.py [--quick] [--json PATH]

Two workers serve model S, as replicas and as a pipeline. 32 streams run; when each has a few tokens, one worker gets
SIGKILL. ``gap_ms`` is, for each round, the longest time between two chunks from the kill on, in the streams whose route
included the victim: detection, re-routing and the second prefill together. A stream that does not complete ends the
benchmark.

Then there are gateways that are processes of their own, two and one, of which one gets SIGKILL while new connections arrive
every 2 ms. ``silent_ms``: from the kill to the end of the last attempt that got no 200 (0: none failed). ``back_ms``: from
the kill until a new incarnation of the victim serves.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

import aiohttp
import harness
import psutil
from harness import OURS, Options, Report
from models import make_model, prompts
from server import Served, ServerError, served

STREAMS = 32
PROMPT_TOKENS = 128
NEW_TOKENS = 128
TOKENS_BEFORE_KILL = 8
GATEWAY_RUNS = 3  # at most: each takes ``LASTED`` seconds
LASTED = 11.0  # seconds after which a process that dies is replaced at once again
WAIT_SECONDS = 60.0
SETTINGS = {"replicas": ("--workers", "2"), "pipeline": ("--workers", "2", "--set", "pipeline=2")}


GATEWAYS = {"one-of-two-gateways": 2, "the-only-gateway": 1}


class Watched:
    """One stream: when its chunks came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.request = ""
        self.begun = asyncio.Event()  # has enough tokens for the kill

    async def follow(self, server: Served, prompt: list[int]) -> None:
        async for at, made, request in server.stream(prompt, NEW_TOKENS):
            self.times.append(at)
            self.request = request
            if made >= TOKENS_BEFORE_KILL:
                self.begun.set()

    def longest_pause(self, moment: float) -> float:
        """Longest time between two chunks of which the second came after ``moment``; 0 when the stream had ended.

        Not just the first chunk after the kill: that one may have been on its way when the worker died.
        """
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((after - before for before, after in pairs if after > moment), default=0.0)


async def round_of(server: Served, seed: int) -> float:
    """Kill one worker under load; the longest pause in milliseconds."""
    streams = [Watched() for _ in range(STREAMS)]
    batch = prompts("S", STREAMS, PROMPT_TOKENS, seed)
    jobs = [asyncio.create_task(s.follow(server, prompt)) for s, prompt in zip(streams, batch, strict=True)]
    await asyncio.gather(*(stream.begun.wait() for stream in streams))
    victim = (await server.get("/admin/cluster"))["workers"][seed % 2]
    routes = [await server.get(f"/v1/requests/{stream.request}") for stream in streams]
    hit = [
        stream
        for stream, view in zip(streams, routes, strict=True)
        if victim["id"] in [hop["worker"] for hop in view["route"]] and view["state"] == "running"
    ]
    if not hit:
        raise ServerError(f"{victim['id']} served none of the {STREAMS} streams when it was to be killed")
    moment = time.monotonic()
    os.kill(victim["pid"], signal.SIGKILL)
    await asyncio.gather(*jobs)
    await recovered(server, victim["pid"])
    return 1000 * max(stream.longest_pause(moment) for stream in hit)


async def recovered(server: Served, dead: int) -> None:
    """Return when two workers serve again and neither is the dead process."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        workers = (await server.get("/admin/cluster"))["workers"]
        if len(workers) == 2 and all(w["pid"] not in (0, dead) and w["blocks"] for w in workers):
            return
        await asyncio.sleep(0.05)
    raise ServerError(f"the killed worker did not serve again within {WAIT_SECONDS:.0f} s")


async def gateway_round(server: Served) -> dict[str, float]:
    """Kill the first gateway; see the module."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    (victim,) = [child for child in children if child.name() == "bw-g0"]
    life = await incarnation(server)
    moment = last = time.monotonic()
    victim.kill()
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(server.base, connector=connector) as fresh:
        while await incarnation(server) <= life:
            try:
                async with fresh.get("/health/ready") as answer:
                    status = answer.status
            except aiohttp.ClientError:
                status = 0
            if status != 200:
                last = time.monotonic()
            await asyncio.sleep(0.002)
    return {"silent_ms": 1000 * (last - moment), "back_ms": 1000 * (time.monotonic() - moment)}


async def incarnation(server: Served) -> int:
    """Of the first gateway's process, once it serves; 0 while nobody can say."""
    try:
        nodes = (await server.get("/admin/actors"))["nodes"]
    except (aiohttp.ClientError, ServerError):
        return 0
    return max((node["incarnation"] for node in nodes if node["name"] == "g0"), default=0)


async def measure(report: Report, runs: int, folder: Path) -> None:
    model = make_model("S", "bf16", folder / "S")
    for kind, arguments in SETTINGS.items():
        async with served(model, *arguments) as server:
            await recovered(server, 0)  # it is ready as soon as one route is whole
            for run in range(runs):
                report.add(f"kill/{kind}", OURS, {"gap_ms": await round_of(server, run)})
    for kind, count in GATEWAYS.items():
        async with served(model, "--set", f"gateways={count}", "--set", "gateway_in_head=no") as server:
            for _ in range(min(runs, GATEWAY_RUNS)):
                report.add(f"kill/{kind}", OURS, await gateway_round(server))
                await asyncio.sleep(LASTED)  # so that each death is the first in a row


@harness.claim("The longest pause of any stream after kill -9, and the time without a gateway, are measured", of="faults")
def main(options: Options) -> None:
    settings = {"streams": STREAMS, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS, "model": "S/bf16"}
    report = Report("failover", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, 2 if options.quick else 5, Path(folder)))
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
