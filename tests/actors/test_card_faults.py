"""Errors of a card that stay, planted at each kind of call that a worker makes of it: the worker ends, and refuses nobody.

On the mirror. Such a process is started again, and its requests go on elsewhere (``tests/system/test_card_errors.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.memory import ChunkMemory
from blockwright.gpu.cuda.synchronous import SynchronousCard
from blockwright.gpu.executor import Executor
from blockwright.tests.actors.worker_rig import Rig
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.waiting import PATIENCE

Checkpoints = Callable[..., Path]
Trigger = Callable[[Rig, Path], Any]


def load(rig: Rig, other: Path) -> Any:
    return rig.load("b", other)


def ask(rig: Rig, other: Path) -> Any:
    return rig.submit("r", list(prompt_of(300, seed=1)), 8)


def arena_of(executor: Executor) -> str:
    return next(key for key in executor.committed() if key.startswith("kv-"))


def leave(rig: Rig, other: Path) -> Any:
    def export(executor: Executor) -> None:
        arena = arena_of(executor)
        executor.pages.export([(arena, [0])], bytearray(executor.pages.size(arena, 1)))

    return rig.worker._do(export)


def move(rig: Rig, other: Path) -> Any:
    return rig.worker._do(lambda executor: executor.pages.move(arena_of(executor), [0], [1]))


def grow(rig: Rig, other: Path) -> Any:
    return rig.worker.device.call_in_steps(lambda executor: executor.grow(2000, 12))


CALLS: dict[str, tuple[type, str, Trigger]] = {
    "parameters are packed": (CudaBackend, "pack", load),
    "components are composed": (CudaBackend, "compose", load),
    "bits are proved": (SynchronousCard, "forward", load),
    "memory is mapped": (ChunkMemory, "map", ask),
    "a sweep begins": (CudaDevice, "begin", ask),
    "a step is computed": (CudaDevice, "step", ask),
    "a token is drawn": (CudaDevice, "sample", ask),
    "pages leave": (CudaBackend, "export", leave),
    "pages are moved": (CudaBackend, "move", move),
    "tables grow": (CudaBackend, "reserve", grow),
    "work is waited for": (CudaBackend, "settle", ask),
}


@claim(
    "An error of a card that stays ends the worker at whatever call it comes, and no request is refused for it", of="faults"
)
@pytest.mark.parametrize("what", CALLS)
async def test_an_error_at_each_kind_of_call_ends_the_worker(
    what: str, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, trigger = CALLS[what]
    rig = await Rig.start([checkpoint("llama")], backend="cuda-mirror")
    await rig.generate("first", list(prompt_of(40, seed=2)), 2)  # KV is mapped
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    rig.worker._end = lambda error: ended.done() or ended.set_result(error)
    backend: Any = rig.worker.backend

    def fault() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered (planted)")

    def planted(self: Any, *arguments: Any, **more: Any) -> Any:
        backend.compute.launch(fault)
        backend.streams.settle()
        raise AssertionError("never gets here")

    monkeypatch.setattr(kind, name, planted)
    called = trigger(rig, checkpoint("qwen2"))
    task = asyncio.ensure_future(called) if asyncio.iscoroutine(called) or asyncio.isfuture(called) else None
    if what == "work is waited for":
        await asyncio.sleep(0)
        rig.worker._do(lambda executor: executor.unload(b"x" * 16, []))
    async with asyncio.timeout(PATIENCE):
        error = await ended
    assert "illegal memory access" in f"{error} {error.__context__} {error.__cause__}"
    if task is not None and trigger is not ask:
        assert not task.done(), "a load is not refused for it: the worker's end answers"
        task.cancel()
    assert all(not future.done() for request, future in rig.record.ended.items() if request != "first")
    await rig.stop()
