"""How long one sweep of the kernels takes, shape by shape; with ``--beside`` in turn with another checkout.

    python benchmarks/kernels.py [--quick] [--json PATH] [--beside CHECKOUT]

Models S and M in both types, on all cores: decoding of 1, 8 and 32 rows, prefill of 128 and 256 tokens, and 31 decoding rows
with a prefill. Every round starts a process for each model and checkout (the other one has a ``.venv`` of its own), and who
begins changes. ``min_ms`` is the shortest sweep of a process, ``median_ms`` its median.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import harness
from harness import BESIDE, Bar, Options, Report

CASES = ("S/bf16", "S/f32", "M/bf16", "M/f32")
AT_MOST = 1.03  # of the other checkout's shortest: what repeated runs of one build differ by


def timed(python: Path, threads: int, seconds: float, model: str) -> dict[str, dict[str, float]]:
    """Case -> metrics, from a process of this interpreter."""
    command = [str(python), str(Path(__file__).with_name("kernels_step.py")), str(threads), str(seconds), model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return parsed(done.stdout.splitlines())


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
    shapes = {case: None for case, _, subject in report.samples if subject == BESIDE}
    bars = [Bar(case, "min_ms", BESIDE, at_most=AT_MOST) for case in shapes]
    harness.finish(report, options, bars)


if __name__ == "__main__":
    main(harness.parse(__doc__, beside=True))
