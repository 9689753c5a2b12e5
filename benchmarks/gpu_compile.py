"""Kernels of ``gpu.py``, compiled in parallel before anything is measured: short forms of its parts, each in a process.

    python benchmarks/gpu_compile.py DEVICE SIZES NUMBER

Runs short form ``NUMBER`` and discards its figures; what stays is in Triton's cache (TRITON_CACHE_DIR), which all share. A
kernel's machine code follows from shapes and types alone, so that a model of one layer is enough.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_card import CARD, open_card
from gpu_report import Part
from gpu_sizes import SIZES, ModelSize, Sizes
from harness import Report

MOST_SECONDS = 150.0
MOST_PROCESSES = 14


@dataclass(frozen=True, slots=True)
class Job:
    """A part and the sizes with which it launches each of its kernels at least once."""

    part: str
    name: str
    sizes: Sizes


def jobs(sizes: Sizes) -> list[Job]:
    """Return the short forms."""
    short = replace(sizes, repeats=1, sweeps=1, seeds=1, rows=(1, max(sizes.rows)), prefill=(max(sizes.prefill[0], 300),))
    short = replace(short, context=2 * sizes.page, copied=1 << 16, side=64)
    found = [Job("kernels", "", short), Job("bits", "", replace(short, models=_shallow(sizes, "1B")))]
    found += [Job("speed", name, replace(short, models=_shallow(sizes, name))) for name in sizes.models]
    found.append(Job("deltas", "", replace(short, models=_shallow(sizes, "8B"))))
    alone = replace(short, presets=(), family=0, errors=())
    found.append(Job("equality", "demo", replace(alone, family=1)))
    found += [Job("equality", name, replace(alone, presets=(name,))) for name in sizes.architectures()]
    found += [Job("equality", f"error {number}", replace(alone, errors=(number,))) for number in sizes.errors]
    return found


def _shallow(sizes: Sizes, name: str) -> dict[str, ModelSize]:
    return {name: replace(sizes.models[name], layers=1)}


def run(device: str, chosen: str, number: int) -> None:
    """Run one short form. Its own failures are rows of the whole run, so that they are no error here."""
    job = jobs(SIZES[chosen])[number]
    part = Part(job.part, open_card(device), job.sizes, Report("gpu", {}), [])
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(f"gpu_{job.part}").measure(part)
        part.card.release()


def prepare(device: str, chosen: str, limit: float = MOST_SECONDS) -> None:
    """Compile all kernels. The mirror has none: there one short form runs in this process, so that this file is run, too."""
    if device != CARD:
        run(device, chosen, 0)
        return
    began = time.monotonic()
    waiting = list(range(len(jobs(SIZES[chosen]))))
    running: list[subprocess.Popen[bytes]] = []
    most = max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    try:
        while (waiting or running) and time.monotonic() - began < limit:
            while waiting and len(running) < most:
                running.append(subprocess.Popen(command(device, chosen, waiting.pop(0)), stderr=subprocess.DEVNULL))
            time.sleep(0.05)
            running = [process for process in running if process.poll() is None]
    finally:
        for process in running:
            process.kill()
            process.wait()
    left = f"; {len(waiting) + len(running)} short forms were left over" if waiting or running else ""
    print(f"kernels compiled in {time.monotonic() - began:.0f} s by {most} processes{left}", flush=True)


def command(device: str, chosen: str, number: int) -> Sequence[str]:
    return [sys.executable, str(Path(__file__).resolve()), device, chosen, str(number)]


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
