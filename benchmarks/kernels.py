"""Time of one sweep of the kernels by shape, and speed of their products beside torch's ``F.linear``.

    python benchmarks/kernels.py [--quick] [--json PATH] [--beside CHECKOUT]

Models S and M in both types, on all cores: decoding of 1, 8 and 32 rows, prefill of 128 and 256 tokens, and 31 decoding rows
with a prefill. Every round starts a process for each model and checkout (the other one has a ``.venv`` of its own), and the
first one alternates. ``min_ms`` is the shortest sweep of a process, ``median_ms`` its median.

``gflops`` is the speed of single products of M (instruction set/type/shape/rows). Ours alternate with torch's, and the ones
in bfloat16 with ours in float32, on each instruction set of the processor. The bars hold for sets with vectors of 8 floats
or more: 0.95 of torch in float32 from 128 rows on, and bfloat16 no slower than float32 from 16 rows on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import harness
from accuracy_ours import instruction_sets
from harness import BESIDE, OURS, Bar, Options, Report
from kernels_products import FLOAT32, TORCH

CASES = ("S/bf16", "S/f32", "M/bf16", "M/f32")
AT_MOST = 1.03  # of the other checkout's shortest: what repeated runs of one build differ by
OF_TORCH, MANY = 0.95, 128  # of its float32, from so many rows on
OF_FLOAT32, SOME = 1.0, 16  # of ours, in bfloat16, from so many rows on
Products = dict[tuple[str, str], float]  # (case, subject) -> GFLOP/s


def timed(python: Path, threads: int, seconds: float, model: str) -> dict[str, dict[str, float]]:
    """Case -> metrics, from a process of this interpreter."""
    command = [str(python), str(Path(__file__).with_name("kernels_step.py")), str(threads), str(seconds), model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return parsed(done.stdout.splitlines())


def products(threads: int, seconds: float, instruction_set: str) -> Products:
    """Measure the products of one instruction set in a process of their own."""
    script = Path(__file__).with_name("kernels_products.py")
    command = [sys.executable, str(script), str(threads), str(seconds), instruction_set]
    return rates(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())


def rates(lines: Iterable[str]) -> Products:
    words = [line.split() for line in lines]
    return {(case, subject): float(gflops) for case, subject, gflops in words}


def product_bars(cases: Iterable[str]) -> list[Bar]:
    """Return the bars of products whose instruction set has vectors of 8 floats and more."""
    bars = []
    for case in cases:
        name, dtype, _, rows = case.split("/")
        if name == "generic":
            continue
        if dtype == "f32" and int(rows) >= MANY:
            bars.append(Bar(case, "gflops", TORCH, at_least=OF_TORCH))
        if dtype == "bf16" and int(rows) >= SOME and name in instruction_sets("float32"):
            bars.append(Bar(case, "gflops", FLOAT32, at_least=OF_FLOAT32))
    return bars


def head(checkout: Path) -> str:
    """Its commit."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def parsed(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    words = [line.split() for line in lines]
    return {case: {"min_ms": float(shortest), "median_ms": float(median)} for case, shortest, median in words}


def main(options: Options) -> None:
    pythons = harness.interpreters(options)
    cases, rounds, seconds = (CASES[:2], 2, 0.1) if options.quick else (CASES, 3, 0.4)
    threads = len(os.sched_getaffinity(0))
    beside = head(options.beside) if options.beside else ""
    report = Report("kernels", {"threads": threads, "seconds": seconds, "beside": beside})
    for turn in range(rounds):
        for model in cases:
            for name in list(pythons)[:: -1 if turn % 2 else 1]:
                for case, metrics in timed(pythons[name], threads, seconds, model).items():
                    report.add(case, name, metrics)
        for instruction_set in instruction_sets("bfloat16"):
            for (case, subject), gflops in products(threads, seconds / 2, instruction_set).items():
                report.add(case, subject, {"gflops": gflops})
    shapes = {case: None for case, _, subject in report.samples if subject == BESIDE}
    bars = [Bar(case, "min_ms", BESIDE, at_most=AT_MOST) for case in shapes]
    bars += product_bars(case for case, metric, subject in report.samples if metric == "gflops" and subject == OURS)
    harness.finish(report, options, bars)


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
