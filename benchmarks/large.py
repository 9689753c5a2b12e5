"""Figures of models of one and three billion parameters that LoRA tenants share.

    python benchmarks/large.py [--quick] [--json PATH]

The models are random Llamas in bfloat16 (1B has 1.1 billion parameters, 3B has 3.0 billion), served by one worker on all
cores together with 20 LoRA adapters of rank 16 on queries and values. ``start_s`` is the time from the start of the process
until all adapters are ready, ``memory_mb`` the peak resident memory of all processes, ``weights_mb`` the parameters in the
worker's memory. ``tenantsN`` sends one request to each of N adapters at once: prompts of 128 tokens, 64 tokens back, over
HTTP. ``out_tok_per_s`` counts answers over the whole time, prompts included. ``ttft_s`` is the median time to the first
token. A model that needs more memory than the machine has free is reported as absent.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import harness
import psutil
from harness import OURS, Options, Report
from models import CONFIG_DTYPES, DTYPES, SIZES, make_model, prompts, shapes
from on_demand import settled
from server import Served, served
from tenants_models import RANK, Fleet

DTYPE = "bf16"
TENANTS = (1, 8, 20)
PROMPT = 128  # tokens
KV = 1 << 30  # bytes for KV, enough for 20 requests
SPARE = 2 << 30  # bytes for processes and page tables


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring."""

    sizes: tuple[str, ...] = ("1B", "3B")
    new_tokens: int = 32
    runs: int = 1

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("1B",), new_tokens=16, runs=1) if quick else cls()


def weight_bytes(size: str) -> int:
    """Return the raw bytes of a model's parameters."""
    return sum(map(math.prod, shapes(SIZES[size]).values())) * DTYPES[DTYPE].itemsize


def memory_needed(size: str) -> int:
    """Return the bytes that must be free: the checkpoint in the file cache beside the worker's own copy, and KV."""
    return 2 * weight_bytes(size) + KV + SPARE


async def ask(server: Served, tenant: str, prompt: list[int], new_tokens: int) -> float:
    """Return the seconds to the first token of an answer that is read to its end."""
    began, first = time.monotonic(), 0.0
    async for at, _, _ in replace(server, model=tenant).stream(prompt, new_tokens):
        first = first or at
    return first - began


async def one_run(server: Served, size: str, plan: Plan, tenants: int, seed: int) -> dict[str, float]:
    """Send a request to each tenant at once."""
    batch = prompts(size, tenants, PROMPT, seed)
    began = time.monotonic()
    waits = await asyncio.gather(*(ask(server, f"a{i}", prompt, plan.new_tokens) for i, prompt in enumerate(batch)))
    speed = tenants * plan.new_tokens / (time.monotonic() - began)
    return {"ttft_s": statistics.median(waits), "out_tok_per_s": speed}


def arguments(size: str, folder: Path) -> list[str]:
    """Return the words after ``blockwright serve BASE``."""
    memory = weight_bytes(size) + weight_bytes(size) // 10 + KV
    words = ["--workers", "1", "--set", f"memory={memory}", "--set", f"app_roots={folder}"]
    return words + [word for i in range(TENANTS[-1]) for word in ("--app", f"a{i}={folder / f'a{i}'}")]


async def measure(report: Report, plan: Plan, size: str, folder: Path) -> None:
    case, fleet = f"{size}/{DTYPE}", Fleet(folder, size, DTYPE)
    base = await asyncio.to_thread(make_model, size, DTYPE, folder / "base")
    for i in range(TENANTS[-1]):
        fleet.adapter(folder / f"a{i}", "lora", i)
    began = time.monotonic()
    async with served(base, *arguments(size, folder)) as server:
        cluster = await settled(server)
        weights = cluster["workers"][0]["memory"]["parameters"]
        report.add(case, OURS, {"start_s": time.monotonic() - began, "weights_mb": weights / 1e6})
        await one_run(server, size, replace(plan, new_tokens=2), 1, 0)  # not counted: the first sweep of a process
        for tenants in TENANTS:
            for run in range(plan.runs):
                report.add(f"{case}/tenants{tenants}", OURS, await one_run(server, size, plan, tenants, 100 * tenants + run))
        report.add(case, OURS, {"memory_mb": server.peak_rss_mb()})


def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"dtype": CONFIG_DTYPES[DTYPE], "rank": RANK, "prompt_tokens": PROMPT, "new_tokens": plan.new_tokens}
    report = Report("large", settings)
    for size in plan.sizes:
        free, needed = psutil.virtual_memory().available, memory_needed(size)
        if free < needed:
            why = f"needs {needed / 1e9:.1f} GB of free memory, this machine has {free / 1e9:.1f}"
            report.absent.append((f"{size}/{DTYPE}", OURS, why))
            continue
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(report, plan, size, Path(folder)))
        harness.store(report, options)  # the next size takes half an hour on a slow machine
    harness.finish(report, options)


if __name__ == "__main__":
    main(harness.parse(__doc__))
