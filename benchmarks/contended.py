"""Benchmark of our server beside a process that takes processor time from it: the share of its speed that remains.

    python benchmarks/contended.py [--quick] [--json PATH]

One worker with as many kernel threads as cores, and another server with ``threads=1``, in turn: alone, beside a process busy
4 ms of every 16 (``quarter``), and beside one that is always busy (``always``), which this script starts and ends. bfloat16,
prompts of 32 tokens, 1, 8 and 32 requests at a time, over HTTP. ``share`` is a figure of tokens per second divided by the
figure of the same server alone, in the same round.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count as counted
from pathlib import Path

import harness
from disturbance import Load, disturbed
from harness import OURS, Bar, Options, Report
from models import make_model, prompts
from server import Served, served

ONE_THREAD = "threads=1"
ALONE = "alone"
LOADS = {ALONE: None, "quarter": Load(0.004, 0.016), "always": Load(0.016, 0.016)}
SHARES = {"quarter": 0.75, "always": 0.60}  # of the undisturbed figure, at least
PROMPT = 32
NEW_TOKENS = {1: 64, 8: 64, 32: 32}  # by requests at a time
Rates = Mapping[str, Mapping[str, float]]  # load -> subject -> tokens per second


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured; a cell repeats its requests until ``seconds`` have passed."""

    sizes: tuple[str, ...] = ("S", "M")
    rounds: int = 3
    seconds: float = 1.5

    @classmethod
    def chosen(cls, quick: bool) -> Plan:
        return cls(sizes=("S",), rounds=2, seconds=0.7) if quick else cls()


def bars(plan: Plan) -> list[Bar]:
    found = []
    for case in (f"{size}/bf16/c{count}" for size in plan.sizes for count in NEW_TOKENS):
        found += [Bar(f"{case}/{load}", "share", at_least=share) for load, share in SHARES.items()]
        found += [Bar(f"{case}/{load}", "out_tok_per_s", ONE_THREAD, at_least=1.0) for load in LOADS]
    return found


def record(report: Report, case: str, rates: Rates) -> None:
    """One round of a case: the figures, and what share of its undisturbed one each subject keeps."""
    for load, by_subject in rates.items():
        for subject, rate in by_subject.items():
            report.add(f"{case}/{load}", subject, {"out_tok_per_s": rate})
            if load != ALONE:
                report.add(f"{case}/{load}", subject, {"share": rate / rates[ALONE][subject]})


def verdicts(report: Report, wanted: list[Bar]) -> list[str]:
    """A line for each bar that is met; ``harness.finish`` prints the others."""
    return [f"MET   {bar.case} {bar.metric} {bar.peer}".rstrip() for bar in wanted if not harness.misses(report, [bar])]


async def round_of(subjects: Mapping[str, Callable[[], Awaitable[float]]]) -> Rates:
    """Every subject under every load, one after the other."""
    rates: dict[str, dict[str, float]] = {}
    for name, load in LOADS.items():
        with disturbed(load):
            rates[name] = {subject: await measure() for subject, measure in subjects.items()}
    return rates


async def cell(server: Served, size: str, requests: int, seconds: float, seeds: Iterator[int]) -> float:
    """Tokens per second. Every batch has prompts of its own, so no cache helps."""
    made, began = 0, time.monotonic()
    while not made or time.monotonic() - began < seconds:
        batch = prompts(size, requests, PROMPT, next(seeds))
        await asyncio.gather(*(server.complete(prompt, NEW_TOKENS[requests]) for prompt in batch))
        made += requests * NEW_TOKENS[requests]
    return made / (time.monotonic() - began)


async def measure(report: Report, plan: Plan, folder: Path) -> None:
    numbers = counted()
    for size in plan.sizes:
        model, always = make_model(size, "bf16", folder / size), ("--workers", "1", "--set", "memory=1500MiB", "--set")
        threads = len(os.sched_getaffinity(0))
        async with served(model, *always, f"threads={threads}") as all_cores, served(model, *always, ONE_THREAD) as one:
            servers = {OURS: all_cores, ONE_THREAD: one}
            for requests in NEW_TOKENS:
                for server in servers.values():
                    await cell(server, size, requests, 0.0, numbers)
                for _ in range(plan.rounds):
                    subjects = {
                        name: partial(cell, server, size, requests, plan.seconds, numbers)
                        for name, server in servers.items()
                    }
                    record(report, f"{size}/bf16/c{requests}", await round_of(subjects))


@harness.claim("Beside a process that is busy a quarter of the time, 75 % of the tokens remain", of="speed")
def main(options: Options) -> None:
    plan = Plan.chosen(options.quick)
    settings = {"prompt_tokens": PROMPT, "new_tokens": {str(n): t for n, t in NEW_TOKENS.items()}, "seconds": plan.seconds}
    report = Report("contended", settings)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(report, plan, Path(folder)))
    wanted = bars(plan)
    print("\n".join(verdicts(report, wanted)))
    harness.finish(report, options, wanted)


if __name__ == "__main__":
    main(harness.parse(__doc__))
