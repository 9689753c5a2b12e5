"""A server whose workers do what a test tells them with files, its levers: hang, come up late, work slowly, load from each
other.

Run as a module it is the server itself (same arguments). Besides, its head does not give up waiting when it stops: where it
waits in vain, the test ends instead.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blockwright.actors.worker.messages import ParametersWanted, RawWanted, WorkerConfig
from blockwright.policies.cluster.parameter_fetch import AHEAD
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.plan.sweep_plan import SetSampling, SweepPlan, SweepResult
from blockwright.runtime import Node

if TYPE_CHECKING:  # the head imports this module, and has no torch
    from blockwright.gpu.device import Ticket
    from blockwright.gpu.executor import Executor

LEVERS = "BLOCKWRIGHT_LEVERS"  # environment: the folder of the files
HANG = "hang"  # whoever removes it never returns from its sweep, as a kernel that hangs
HOLD = "hold"  # no worker comes up while it is there
UNBUILT = "unbuilt"  # while it is there, workers come up as where no compiler was when the package was installed
SLOW = "slow"  # while it is there, sequences that have more tokens than it says take their time for every other
SOURCE = "source"  # while it is there, loads get their parameters from the worker that it names
DIE = "die"  # whoever removes it dies of SIGKILL as it is asked for more parameters, having sent some
WAIT = "wait"  # while it is there, no worker sends parameters to another
BREAK = "break"  # whoever removes it has a card that fails for good: as a sweep is submitted, or as it is waited for
OWN = "own"  # settings of single workers, as JSON: by worker, part and name
COMPILE = "compile"  # the file of a cache: where it is, operations of the mirror take their time when they are new to it
COMPILING = 0.5  # seconds
PAUSE = 0.02  # seconds between two looks at ``WAIT``
SLOW_SWEEP = 0.25  # seconds


class Brake:
    """Holds a worker back, so that a test that is slow itself finds requests at work."""

    def __init__(self, lever: Path) -> None:
        self._lever = lever
        self._prompts: dict[int, int] = {}  # row -> tokens of its prompt

    def hold(self, plan: SweepPlan) -> None:
        self._prompts |= {edit.row: edit.prompt_length for edit in plan.edits if isinstance(edit, SetSampling)}
        rows = zip(plan.row, plan.start, plan.count, strict=True)
        made = max((start + count - self._prompts.get(row, 0) for row, start, count in rows), default=0)
        until = time.monotonic() + SLOW_SWEEP
        while self._allowed() < made and time.monotonic() < until:
            time.sleep(0.005)

    def _allowed(self) -> float:
        try:
            return float(self._lever.read_text())
        except FileNotFoundError:
            return float("inf")
        except ValueError:
            return 0.0  # it is being written


def compile_first(cache: Path) -> None:
    """Let each operation of the mirror take its time when a shape is new to ``cache``, a file that outlives processes."""
    from blockwright.gpu.cuda.ops_torch import TorchOps

    for name in ("product", "attend", "heads", "finish", "activate"):
        whole = getattr(TorchOps, name)

        def first(self: Any, *arguments: Any, name: str = name, whole: Any = whole) -> Any:
            key = f"{name} {self.dtype}\n"
            if key not in cache.read_text():
                time.sleep(COMPILING)
                with cache.open("a") as file:
                    file.write(key)
            return whole(self, *arguments)

        setattr(TorchOps, name, first)


class BrokenTicket:
    """The ticket of a sweep during which the card fails for good."""

    ready, departed = False, ()

    def __init__(self, executor: Executor) -> None:
        self._device = executor.device

    def wait(self) -> SweepResult:
        self._device.settle()
        raise AssertionError("never ends")


def break_card(executor: Executor) -> None:
    """Queue work on the mirror of a card that fails, after which all that waits there fails."""

    def fault() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered (planted)")

    backend: Any = executor.backend
    backend.compute.launch(fault)


def with_own(config: WorkerConfig, own: dict[str, dict[str, Any]]) -> WorkerConfig:
    """Return a worker's settings with others, by part and name."""
    return replace(config, **{part: replace(getattr(config, part), **values) for part, values in own.items()})


async def start(node: Node, config: WorkerConfig) -> None:
    """Entry of the worker process."""
    from blockwright.actors.worker import main as worker_main
    from blockwright.actors.worker.parameters import ParameterCarrier
    from blockwright.actors.worker.raw_tensors import RawTensors
    from blockwright.gpu.cpu.native import library as native_library
    from blockwright.gpu.executor import Executor

    submit, levers = Executor.submit, Path(os.environ[LEVERS])
    brake = Brake(levers / SLOW)

    def broken(self: Executor, plan: SweepPlan, where: str) -> Ticket:
        (levers / BREAK).unlink()
        if where == "submit":
            break_card(self)
        ticket = submit(self, plan)
        break_card(self)
        return cast("Ticket", BrokenTicket(self)) if where == "wait" else ticket

    def faulty(self: Executor, plan: SweepPlan) -> Ticket:
        if (levers / BREAK).exists():
            return broken(self, plan, (levers / BREAK).read_text())
        try:
            (levers / HANG).unlink()
        except FileNotFoundError:
            brake.hold(plan)
            return submit(self, plan)
        return cast("Ticket", threading.Event().wait())  # never

    batches = itertools.count(1)
    send, send_raw = ParameterCarrier.send, RawTensors.send

    def die_in_the_middle() -> None:
        if (levers / DIE).exists() and next(batches) == AHEAD + 1:
            (levers / DIE).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def mortal(self: ParameterCarrier, wanted: ParametersWanted) -> None:
        if (levers / WAIT).exists():
            asyncio.get_running_loop().call_later(PAUSE, mortal, self, wanted)
            return
        die_in_the_middle()
        send(self, wanted)

    def mortal_raw(self: RawTensors, wanted: RawWanted) -> None:
        die_in_the_middle()
        send_raw(self, wanted)

    ParameterCarrier.send = mortal  # type: ignore[method-assign]
    RawTensors.send = mortal_raw  # type: ignore[method-assign]
    if (levers / UNBUILT).exists():
        native_library.LIBRARY = levers / "elsewhere" / "_cpu.so"
    if (levers / COMPILE).exists():
        compile_first(levers / COMPILE)
    Executor.submit = faulty  # type: ignore[method-assign]
    while (levers / HOLD).exists():  # noqa: ASYNC110 - another process removes it
        await asyncio.sleep(0.005)
    if (levers / OWN).exists():
        config = with_own(config, json.loads((levers / OWN).read_text()).get(config.name, {}))
    await worker_main.start(node, config)


def name_sources(lever: Path) -> None:
    """In the head."""
    from blockwright.policies.control.residency import Residency

    first_missing = Residency._first_missing

    def sourced(self: Residency, name: str) -> LoadBlock:
        return replace(first_missing(self, name), source=lever.read_text() if lever.exists() else "")

    Residency._first_missing = sourced  # type: ignore[method-assign]


if __name__ == "__main__":
    from blockwright.actors import topology
    from blockwright.api.commands.cli import main
    from blockwright.runtime.cluster import cluster

    if sys.argv[1:2] == ["worker"]:  # a worker that joins by itself
        from blockwright.actors.worker import joined

        joined.start = start
    topology.WORKER = "blockwright.tests.system.faulty_worker:start"
    cluster.STOP_GRACE = 1e6
    name_sources(Path(os.environ[LEVERS]) / SOURCE)
    raise SystemExit(main())
