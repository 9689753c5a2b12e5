"""Serving figures of one worker with all cores, beside transformers' static batch on the same prompts.

    python benchmarks/serving.py [--quick] [--json PATH]

Prompts of 128 tokens, 128 new tokens, greedy, the end of sequence ignored; ours over HTTP, transformers in a process of its
own. ``startup/{stage}`` counts from the start of the process. ``outside_kernels_share`` is the share of a sweep that the
device thread spends outside runs and sampling. ``gateway_us_per_token`` is the processor time of the gateway's process for
each streamed token.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import harness
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import Served, served
from transformers_peer import Peer

PEER = "transformers"
DTYPES = ("f32", "bf16")
CONCURRENCY = (1, 8, 32)
WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    sizes: tuple[str, ...] = ("S", "M")
    prompt_tokens: int = 128
    new_tokens: int = 128
    runs: int = 3
    share_runs: int = 1

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("S",), new_tokens=64, runs=2) if quick else cls()


def bars(plan: Plan) -> list[Bar]:
    """float32 at least 1.2 times, bfloat16 at least 3 times transformers, at 32 requests."""
    ratios = {"f32": 1.2, "bf16": 3.0}
    return [Bar(f"{s}/{d}/c32", "out_tok_per_s", PEER, at_least=ratios[d]) for s in plan.sizes for d in DTYPES]


async def ours_once(server: Served, batch: list[list[int]], new_tokens: int) -> float:
    """Tokens per second of a batch that is sent at once."""
    began = time.monotonic()
    await asyncio.gather(*(server.complete(prompt, new_tokens) for prompt in batch))
    return len(batch) * new_tokens / (time.monotonic() - began)


async def throughput(report: Report, plan: Plan, size: str, dtype: str, server: Served, peer: Peer) -> None:
    """Subjects take turns; every run has prompts of its own, so no cache helps. The first, short round is not counted."""
    for count in CONCURRENCY:
        case = f"{size}/{dtype}/c{count}"
        for run in range(-1, plan.runs):
            batch = prompts(size, count, plan.prompt_tokens, seed=1000 * count + run)
            new_tokens = plan.new_tokens if run >= 0 else min(WARM_TOKENS, plan.new_tokens)
            ours = await ours_once(server, batch, new_tokens)
            theirs = await asyncio.to_thread(peer.generate, batch, new_tokens)
            if run >= 0:
                report.add(case, OURS, {"out_tok_per_s": ours})
                report.add(case, PEER, {"out_tok_per_s": count * plan.new_tokens / theirs})
        report.add(case, OURS, {"peak_rss_mb": server.peak_rss_mb()})
        report.add(case, PEER, {"peak_rss_mb": peer.peak_rss_mb()})


async def shares(report: Report, plan: Plan, size: str, dtype: str, server: Served) -> None:
    """Where time goes with 32 streams: outside kernels in a sweep, and in the gateway."""
    for run in range(plan.share_runs):
        batch = prompts(size, 32, plan.prompt_tokens, seed=-1 - run)
        cpu, (whole, kernels) = server.head_cpu_seconds(), await server.sweep_seconds()
        await asyncio.gather(*(drained(server.stream(prompt, plan.new_tokens)) for prompt in batch))
        cpu, (whole_after, kernels_after) = server.head_cpu_seconds() - cpu, await server.sweep_seconds()
        outside = 1 - (kernels_after - kernels) / (whole_after - whole)
        per_token = cpu * 1e6 / (len(batch) * plan.new_tokens)
        report.add(f"{size}/{dtype}/c32", OURS, {"outside_kernels_share": outside, "gateway_us_per_token": per_token})


async def drained(stream: AsyncIterator[tuple[float, int, str]]) -> None:
    async for _ in stream:
        pass


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    threads = len(os.sched_getaffinity(0))
    for size in plan.sizes:
        for dtype in DTYPES:
            model = make_model(size, dtype, folder / f"{size}-{dtype}")
            peer = Peer(model, threads)
            try:
                started = await asyncio.to_thread(peer.first_token)
                async with served(model, "--workers", "1", "--set", f"threads={threads}") as server:
                    if (size, dtype) == (plan.sizes[0], "bf16"):
                        report.add("startup/first_token", PEER, {"start_s": started})
                        for stage, seconds in server.stages.items():
                            report.add(f"startup/{stage}", OURS, {"start_s": seconds})
                    await throughput(report, plan, size, dtype, server, peer)
                    await shares(report, plan, size, dtype, server)
            finally:
                peer.close()


@harness.claim(
    "Serving is at least 1.3 times as fast as transformers, with 1 to 32 requests at once", of="speed", headline=True
)
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"prompt_tokens": plan.prompt_tokens, "new_tokens": plan.new_tokens, "workers": 1}
    report = Report("serving", settings, ("torch", PEER))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, bars(plan))


if __name__ == "__main__":
    main(harness.parse(__doc__))
