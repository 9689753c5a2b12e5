"""One machine, this checkout and another one in turns: what a change of the whole system must not make worse.

    python benchmarks/one_machine.py [--quick] [--json PATH] --beside CHECKOUT

``whole``: two workers serve model S: seconds from the start of the process to ready, tokens per second of 1, 8 and 32
streams, the sum of the peak resident sizes, and the longest pause of 32 streams of which a worker is killed. Each round
starts one server of each checkout. ``gateways``: microseconds of the gateways' processors for each streamed token of a tiny
model, with one gateway process and with four, which share the same streams or have as many each; and the events that carry
a token, which are fewer where a machine is so busy that tokens wait for each other.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import failover
import harness
import psutil
from harness import BESIDE, Bar, Options, Report
from models import make_model, prompts
from server import Served, processor_seconds, served

PROMPT, ANSWER = 64, 32  # tokens
STREAMS = (1, 8, 32)
GATEWAYS = ((1, 32), (4, 32), (4, 128))  # processes, and streams over all of them
LONG = 128  # tokens of an answer of the tiny model
BARS = [
    *(Bar("whole", name, BESIDE, at_most=1.1) for name in ("ready_s", "peak_rss_mb", "gap_ms")),
    *(Bar("whole", f"c{streams}_tok_per_s", BESIDE, at_least=0.9) for streams in STREAMS),
    Bar("gateways/g1/c32", "us_per_token", BESIDE, at_most=0.75),
]


async def whole(report: Report, name: str, python: Path, model: Path, turn: int) -> None:
    """One life of a server."""
    async with served(model, "--workers", "2", python=python) as server:
        await failover.recovered(server, 0)
        figures = {"ready_s": server.stages["ready"]}
        for streams in STREAMS:
            batch = prompts("S", streams, PROMPT, seed=100 * turn + streams)
            began = time.monotonic()
            await asyncio.gather(*(server.complete(prompt, ANSWER) for prompt in batch))
            figures[f"c{streams}_tok_per_s"] = streams * ANSWER / (time.monotonic() - began)
        figures["peak_rss_mb"] = server.peak_rss_mb()
        figures["gap_ms"] = await failover.round_of(server, turn)
        report.add("whole", name, figures)


async def stream(server: Served, prompt: list[int]) -> int:
    """Read an answer as cheaply as possible, so that its gateway need not wait; the number of its events."""
    body = server.body(prompt, LONG, stream=True)
    async with server.session.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        return (await answer.read()).count(b"\ndata: {")


async def gateway_round(server: Served, streams: int, seed: int) -> dict[str, float]:
    below = psutil.Process(server.process.pid).children(recursive=True)
    gateways = [child.pid for child in below if child.name().startswith("bw-g")]
    batch = prompts("tiny", streams, 16, seed=seed)
    before = sum(map(processor_seconds, gateways))
    events = sum(await asyncio.gather(*(stream(server, prompt) for prompt in batch)))
    spent, tokens = sum(map(processor_seconds, gateways)) - before, streams * LONG
    return {"us_per_token": 1e6 * spent / tokens, "events_per_token": events / tokens}


async def measure(report: Report, options: Options, folder: Path) -> None:
    pythons = harness.interpreters(options)
    model, tiny = (make_model(size, "f32", folder / size) for size in ("S", "tiny"))
    for turn in range(1 if options.quick else 3):
        for name, python in list(pythons.items())[:: 1 if turn % 2 else -1]:
            await whole(report, name, python, model, turn)
    for count, streams in GATEWAYS:
        async with AsyncExitStack() as stack:
            settings = ("--workers", "1", "--set", f"gateways={count}", "--set", "gateway_in_head=no")
            servers = {
                name: await stack.enter_async_context(served(tiny, *settings, python=python))
                for name, python in pythons.items()
            }
            for turn in range(-1, 2 if options.quick else 10):  # the first is not counted
                for name, server in list(servers.items())[:: 1 if turn % 2 else -1]:
                    figures = await gateway_round(server, streams, seed=turn)
                    if turn >= 0:
                        report.add(f"gateways/g{count}/c{streams}", name, figures)


def main(options: Options) -> None:
    report = Report("one_machine", {"prompt": PROMPT, "answer": ANSWER, "long": LONG})
    with tempfile.TemporaryDirectory(prefix="blockwright-one-machine-") as name:
        asyncio.run(measure(report, options, Path(name)))
    harness.finish(report, options, BARS if options.beside else [])


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
