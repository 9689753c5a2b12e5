"""A process that takes processor time from others: busy for a part of every period, or always.

    python benchmarks/disturbance.py BUSY PERIOD PARENT

It ends with the block that started it, and by itself when its parent is gone, however the parent died.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Busy for ``busy`` of every ``period`` seconds."""

    busy: float
    period: float


@contextmanager
def disturbed(load: Load | None) -> Iterator[subprocess.Popen[bytes] | None]:
    """The process, at work when the block begins and gone when it ends; None without a load."""
    if load is None:
        yield None
        return
    command = [sys.executable, __file__, str(load.busy), str(load.period), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None, "a pipe"
            if not process.stdout.readline():
                raise RuntimeError(f"the disturbance ended with {process.wait()} before it began")
            yield process
        finally:
            process.kill()


def disturb(load: Load, parent: int) -> None:
    print(flush=True)
    while os.getppid() == parent:
        began = time.perf_counter()
        while time.perf_counter() - began < load.busy:
            pass
        if load.period > load.busy:
            time.sleep(load.period - load.busy)


if __name__ == "__main__":
    disturb(Load(float(sys.argv[1]), float(sys.argv[2])), int(sys.argv[3]))
