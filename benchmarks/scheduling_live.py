"""Dispatch policies on a real cluster (four workers with a tiny model and little memory), and the cost of asking.

    python benchmarks/scheduling_live.py [--quick] [--json PATH]

Sweeps of the workers are held to ``COSTS`` (setting ``pace``), so that there can be more workers than cores. Lengths come
from ShareGPT up to ``LONGEST`` tokens, divided by ``SHORTER``, and are known to the scheduler: a request states how many
tokens it wants. Gaps between arrivals come from the Azure trace, from another place for each seed. Every policy gets the
same requests, on a server of its own, seed by seed in turn; times are measured at the client, from when a request was due.

``real4/loadN``: N % of ``RATE``, which is about the workers' throughput for requests that arrive all at once.
``preemptions``: per request. ``memory_used`` and ``memory_spread``: share of a worker's KV pages in use, mean and standard
deviation over the workers, sampled. ``real4/capacity``: the rate at which the P99 of the time to the first token (TTFT)
reaches ``LIMIT``, by logarithmic interpolation between two loads; not beyond the measured ones. ``asking/..``: the time that
requests waited for a dispatcher, also as a share of their latency, and the share of requests that it could not decide.
``busy``: sweeps run at full speed, with all cores busy: the workers' loss to their predictors.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fidelity
import harness
import scheduling_runs as runs
from fidelity import Asked
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import Served, served

WORKERS, SIZE = 4, "tiny"
COSTS = {"base": 0.04, "token": 0.002}  # seconds of a sweep, and of each of its tokens
SHORTER, LONGEST = 16, 1024
PARAMETERS = 1_572_864  # bytes of the tiny model on a worker
PAGES = 48  # pages beside it
PAGE = 8  # tokens of a page
KV = 1024 * PAGE * PAGES  # bytes
SETTINGS = {"page_size": PAGE, "chunk_size": 32, "sweep_tokens": 32, "max_rows": 16, "max_model_len": 128}
RATE, LIMIT = 32.0, 1.0  # requests a second; seconds
REFERENCE = "llumnix-minus-code"
ALONE = "outstanding"
PO2 = "po2"
NAMES = ("random", "round-robin", "min-qpm", "infaas-code", REFERENCE, ALONE)
POLICIES: dict[str, dict[str, Any]] = {
    **{name: {"dispatch": name} for name in NAMES},
    PO2: {"dispatch": "predicted-latency", "dispatch_candidates": 2},
    OURS: {"dispatch": "ours", "slo_ttft": LIMIT},
}
FORECAST = (PO2, OURS)
SAMPLING = 0.25  # seconds between looks at memory
WARM = 8  # requests before those that count
PROMPT = 16  # tokens of the prompt of a request to busy workers
TOKENS = 64  # tokens of its answer
TOGETHER = 32  # requests at a time
SHARE = 0.03  # bar: of the latency, and of the tokens a second


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. ``busy``: requests to busy workers."""

    loads: tuple[int, ...] = (75, 110, 140)
    seeds: tuple[int, ...] = (1, 2, 3)
    count: int = 160
    busy: int = 600
    policies: tuple[str, ...] = tuple(POLICIES)

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(loads=(110,), seeds=(1,), count=60, busy=60, policies=(REFERENCE, ALONE, PO2, OURS)) if quick else cls()

    def bars(self) -> list[Bar]:
        asked = [f"asking/load{load}/{policy}" for load in self.loads for policy in FORECAST]
        return [
            *[Bar(case, "asked_share", at_most=SHARE) for case in asked],
            Bar("real4/capacity", "capacity_rps", REFERENCE, at_least=1.0),
            Bar("busy", "out_tok_per_s", ALONE, at_least=1 - SHARE),
        ]


@cache
def shapes() -> list[tuple[int, int]]:
    """Tokens of prompts and answers."""
    from blockwright.simulator.traces import read_trace

    found = [one for one in read_trace(runs.lengths()) if max(one.prompt, one.output) <= LONGEST]
    return [(max(2, one.prompt // SHORTER), max(2, one.output // SHORTER)) for one in found]


def requests(seed: int, count: int, rate: float) -> list[Asked]:
    """``rate`` a second on average; another rate changes nothing else."""
    draw, gaps = random.Random(seed), json.loads(fidelity.TRACE.read_text())["gap_s"]
    start = draw.randrange(len(gaps))
    at = 0.0
    found = []
    chosen = [gaps[(start + n) % len(gaps)] for n in range(count)]
    for gap, (prompt, tokens) in zip(chosen, draw.sample(shapes(), count), strict=True):
        found.append(Asked(at, prompt, tokens))
        at += gap / statistics.mean(chosen) / rate
    return found


# a server --------------------------------------------------------------------------------------------------------------


def serving(model: Path, policy: str, **settings: Any) -> AbstractAsyncContextManager[Served]:
    chosen = {"workers": WORKERS, "threads": 1, "prefix_cache": "no", **POLICIES[policy], **settings}
    return served(model, *(word for name, value in chosen.items() for word in ("--set", f"{name}={value}")))


def paced(pace: Path) -> dict[str, Any]:
    """Settings of workers with little memory, whose sweeps take what a file says."""
    return {**SETTINGS, "memory": PARAMETERS + KV, "pace": pace, "profile": pace}


async def warm(server: Served) -> None:
    await asyncio.gather(*(server.complete(prompt, PAGE) for prompt in prompts(SIZE, WARM, PROMPT, seed=0)))


async def workers(server: Served) -> list[dict[str, Any]]:
    """As they see themselves; one that is busy may answer the second time."""
    while True:
        found: list[dict[str, Any]] = (await server.get("/admin/cluster"))["workers"]
        if all(worker["counters"] for worker in found):
            return found


def metric_value(metrics: str, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(map(float, re.findall(rf"^blockwright:{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Since the start of a server, over its workers. ``asked``: requests that a dispatcher was asked about, and how long."""

    preemptions: float
    sweeps: float
    sweep_seconds: float
    asked: float
    asked_seconds: float
    fell_back: float

    @classmethod
    async def of(cls, server: Served) -> Counts:
        counters = [worker["counters"] for worker in await workers(server)]
        async with server.session.get("/metrics") as answer:
            text = await answer.text()
        of_workers = {name: sum(worker[name] for worker in counters) for name in ("preemptions", "sweep_seconds")}
        sweeps = sum(count for worker in counters for name, count in worker.items() if name.startswith("sweeps_up_to"))
        names = {"asked": "seconds_count", "asked_seconds": "seconds_sum", "fell_back": "fallback_total"}
        of_gateway = {name: metric_value(text, f"dispatch_{metric}") for name, metric in names.items()}
        return cls(sweeps=sweeps, **of_workers, **of_gateway)

    def asking(self, before: Counts, latency: float) -> dict[str, float]:
        """Of the requests since ``before``, whose mean latency is given."""
        asked = self.asked - before.asked
        seconds = (self.asked_seconds - before.asked_seconds) / asked
        return {"asked_ms": 1e3 * seconds, "asked_share": seconds / latency,
                "fell_back": (self.fell_back - before.fell_back) / asked}  # fmt: skip


async def look_at_memory(server: Served, seen: list[list[float]]) -> None:
    """For ever: the part of each worker's KV memory that is in use."""
    while True:
        seen.append([sum(worker["kv_by_tenant"].values()) / KV for worker in await workers(server)])
        await asyncio.sleep(SAMPLING)


async def run(report: Report, server: Served, policy: str, load: int, seed: int, count: int) -> float:
    """One trace; returns the P99 of the TTFT in seconds."""
    before, memory = await Counts.of(server), list[list[float]]()
    looks = asyncio.create_task(look_at_memory(server, memory))
    asked = requests(seed, count, RATE * load / 100)
    ttft, latency = await fidelity.live(server, SIZE, asked, (seed << 8) + load, time.monotonic() + fidelity.PAUSE)
    looks.cancel()
    await asyncio.gather(looks, return_exceptions=True)
    after, mean = await Counts.of(server), statistics.fmean(latency)
    found = {
        "ttft_mean_s": statistics.fmean(ttft), "ttft_p99_s": runs.percentile(ttft, 0.99),
        "latency_mean_s": mean, "latency_p99_s": runs.percentile(latency, 0.99),
        "preemptions": (after.preemptions - before.preemptions) / count,
        "memory_used": statistics.fmean(map(statistics.fmean, memory)),
        "memory_spread": statistics.fmean(map(statistics.pstdev, memory)),
    }  # fmt: skip
    report.add(f"real4/load{load}", policy, found)
    if policy in FORECAST:
        report.add(f"asking/load{load}/{policy}", OURS, after.asking(before, mean))
    return found["ttft_p99_s"]


def capacity(loads: Sequence[int], tails: Sequence[float]) -> float:
    """Requests a second where the P99 of the TTFT first reaches the limit."""
    over = next((n for n, tail in enumerate(tails) if tail >= LIMIT), len(tails))
    if over in (0, len(tails)):
        return RATE * loads[0 if not over else -1] / 100
    part = math.log(LIMIT / tails[over - 1]) / math.log(tails[over] / tails[over - 1])
    return RATE * (loads[over - 1] + part * (loads[over] - loads[over - 1])) / 100


async def busy(report: Report, model: Path, policy: str, count: int) -> None:
    """So many requests at a time, of one length."""
    async with serving(model, policy) as server:
        await asyncio.gather(*(server.complete(prompt, TOKENS) for prompt in prompts(SIZE, TOGETHER, PROMPT, seed=2)))
        latencies, room = list[float](), asyncio.Semaphore(TOGETHER)
        before, began = await Counts.of(server), time.monotonic()

        async def one(prompt: list[int]) -> None:
            async with room:
                since = time.monotonic()
                await server.complete(prompt, TOKENS)
                latencies.append(time.monotonic() - since)

        await asyncio.gather(*(one(prompt) for prompt in prompts(SIZE, count, PROMPT, seed=1)))
        wall, after = time.monotonic() - began, await Counts.of(server)
    seconds = (after.sweep_seconds - before.sweep_seconds) / (after.sweeps - before.sweeps)
    found = {"out_tok_per_s": count * TOKENS / wall, "sweep_ms": 1e3 * seconds}
    if policy in FORECAST:
        found |= after.asking(before, statistics.fmean(latencies))
    report.add("busy", policy, found)


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    model, pace = make_model(SIZE, "f32", folder / SIZE), folder / "pace.json"
    pace.write_text(json.dumps(COSTS))
    for seed in plan.seeds:
        for policy in plan.policies:
            async with serving(model, policy, **paced(pace)) as server:
                await warm(server)
                tails = [await run(report, server, policy, load, seed, plan.count) for load in plan.loads]
            report.add("real4/capacity", policy, {"capacity_rps": capacity(plan.loads, tails)})
        for policy in (ALONE, PO2, OURS):
            await busy(report, model, policy, plan.busy)


@harness.claim(
    "Forecast dispatch on four real workers has a higher capacity than Llumnix- and costs less than 3 %", of="prediction"
)
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"lengths": runs.lengths().name, "shorter": SHORTER, "rate": RATE, "limit": LIMIT, "costs": COSTS, **SETTINGS}
    report = Report("scheduling_live", {**settings, "workers": WORKERS, "pages": PAGES, "requests": plan.count})
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, plan.bars())


if __name__ == "__main__":
    main(harness.parse(__doc__))
