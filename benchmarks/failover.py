"""How long clients wait when a worker is killed: the longest pause in any stream that the dead worker took part in.

    python benchmarks/failover.py [--quick] [--json PATH]

Two workers serve model S, as replicas and as a pipeline. 32 streams run; when each has a few tokens, one worker gets
SIGKILL. ``gap_ms`` is, for each round, the longest time between two chunks from the kill on, in the streams whose route
named the victim: detection, re-routing and the second prefill together. A stream that does not complete ends the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

import harness
from harness import OURS, Options, Report
from models import make_model, prompts
from server import Served, ServerError, served

STREAMS, PROMPT_TOKENS, NEW_TOKENS = 32, 128, 128
TOKENS_BEFORE_KILL = 8
WAIT_SECONDS = 60.0
SETTINGS = {"replicas": ("--workers", "2"), "pipeline": ("--workers", "2", "--set", "pipeline=2")}


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


async def measure(report: Report, runs: int, folder: Path) -> None:
    model = make_model("S", "bf16", folder / "S")
    for kind, arguments in SETTINGS.items():
        async with served(model, *arguments) as server:
            for run in range(runs):
                report.add(f"kill/{kind}", OURS, {"gap_ms": await round_of(server, run)})


def main(options: Options) -> None:
    settings = {"streams": STREAMS, "prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS, "model": "S/bf16"}
    report = Report("failover", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, 2 if options.quick else 5, Path(folder)))
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
