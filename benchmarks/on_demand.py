"""Time to first token with more adapters than fit the memory of a worker.

    python benchmarks/on_demand.py [--quick] [--json PATH]

One model S in float32 with LoRA adapters of rank 16 on all linear modules, served with 0.5, 1 and 2 times the number of
adapters that fit (8; the memory is the same). Each server in turn gets requests at the same rate: distinct prompts of 128
tokens, each to an adapter drawn at random, 16 tokens back, streamed over HTTP. ``ttft_ms`` is the median, ``ttft_p95_ms``
the 95th percentile of all requests of a round; ``swaps`` the number of adapters loaded in it. The bar: at twice the adapters
that fit at most 3 times the time at half.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import harness
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import Served, served
from tenants_models import RANK, Fleet

SIZE, DTYPE = "S", "f32"
FIT = 8  # adapters
SUBJECTS = {"half": FIT // 2, "all": FIT, OURS: 2 * FIT}  # adapters that are served
KV = 64 << 20  # bytes that stay for KV
PROMPT, ANSWER = 128, 16  # tokens
CHUNK = 64 << 10  # bytes that a worker maps at a time
SETTLE_SECONDS = 900.0
BARS = [Bar(f"{SIZE}/{DTYPE}", "ttft_ms", "half", at_most=3.0)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured; ``rate``: requests per second."""

    rounds: int = 3
    requests: int = 30
    rate: float = 2.5

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(rounds=1, requests=30) if quick else cls()


def arguments(folder: Path, adapters: int, *more: str) -> list[str]:
    """What follows ``blockwright serve`` and the base."""
    words = ["--workers", "1", "--set", "threads=1", *more]
    return words + [word for i in range(adapters) for word in ("--app", f"a{i}={folder / f'a{i}'}")]


async def settled(server: Served) -> dict[str, Any]:
    """The cluster once nothing is loading: a server is ready as soon as its base is, adapters come after it."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            cluster: dict[str, Any] = await server.get("/admin/cluster")
            if all(one["state"] != "loading" for one in cluster["applications"].values()):
                return cluster
            await asyncio.sleep(0.1)


async def sizes(base: Path, folder: Path) -> tuple[int, int]:
    """Bytes of the base and of an adapter in a worker's memory."""
    async with served(base, *arguments(folder, 1, "--set", "memory=600MiB")) as server:
        held = (await settled(server))["workers"][0]["parameters_by_application"]
        own = int(held["a0"]["owned"])
        return int(held["a0"]["shared"]), own


def limits(base: int, adapter: int) -> list[str]:
    """Settings with which so many adapters fit and no more: of what the largest application leaves KV keeps a part."""
    left = (FIT - 0.5) * adapter + KV
    return ["--set", f"memory={math.ceil((base + adapter + left) / CHUNK) * CHUNK}", "--set", f"kv_reserve={KV / left:.6f}"]


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


async def ask(server: Served, model: str, prompt: list[int]) -> float:
    """Milliseconds to the first token of an answer that is read to its end."""
    began, first = time.monotonic(), 0.0
    async for at, _, _ in replace(server, model=model).stream(prompt, ANSWER):
        first = first or at
    return (first - began) * 1e3


async def one_round(server: Served, adapters: int, plan: Plan, seed: int) -> dict[str, float]:
    """The same arrivals for every server; which adapter a request is for is drawn among those that it serves."""
    chance, version = random.Random(seed), (await server.get("/admin/cluster"))["version"]
    asked = prompts(SIZE, plan.requests, PROMPT, seed * 10 + adapters)
    tasks = []
    for prompt in asked:
        tasks.append(asyncio.create_task(ask(server, f"a{chance.randrange(adapters)}", prompt)))
        await asyncio.sleep(chance.expovariate(plan.rate))
    found = await asyncio.gather(*tasks)
    swaps = ((await server.get("/admin/cluster"))["version"] - version) / 2  # one leaves, one comes
    return {"ttft_ms": statistics.median(found), "ttft_p95_ms": p95(found), "swaps": swaps}


async def resident(server: Served) -> int:
    """Adapters that are in the worker."""
    applications = (await settled(server))["applications"]
    return len([one for one in applications.values() if one["state"] == "ready"]) - 1


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    base = make_model(SIZE, DTYPE, folder / "base")
    fleet = Fleet(folder, SIZE, DTYPE)
    numbers = count(1)
    for i in range(2 * FIT):
        fleet.adapter(folder / f"a{i}", "lora-all", i)
    known = limits(*await sizes(base, folder))
    async with AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(served(base, *arguments(folder, adapters, *known)))
            for name, adapters in SUBJECTS.items()
        }
        for name, server in servers.items():
            report.add(f"{SIZE}/{DTYPE}", name, {"resident": await resident(server)})
            await one_round(server, SUBJECTS[name], replace(plan, requests=SUBJECTS[name]), 0)  # texts and kernels are warm
        for seed in (next(numbers) for _ in range(plan.rounds)):
            for name, server in servers.items():
                report.add(f"{SIZE}/{DTYPE}", name, await one_round(server, SUBJECTS[name], plan, seed))


@harness.claim("First tokens with twice the adapters that fit take at most 3 times as long as with half", of="speed")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"prompt_tokens": PROMPT, "new_tokens": ANSWER, "rank": RANK, "fit": FIT, "per_second": plan.rate}
    report = Report("on_demand", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    harness.finish(report, options, BARS)


if __name__ == "__main__":
    main(harness.parse(__doc__))
