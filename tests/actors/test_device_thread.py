"""The device thread's pace and lateness, under a clock that moves only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors.worker import device_thread
from blockwright.actors.worker.device_thread import DeviceThread
from blockwright.policies.plan.cost import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.tests.waiting import PATIENCE

PACE = 0.5  # seconds of each sweep


class Clock:
    """In place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(device_thread, "time", made)
    return made


async def swept(execute: Callable[[DeviceThread], None], pace: float | None) -> DeviceThread:
    """One sweep, whose execution is ``execute``."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def run(plan: SweepPlan) -> SweepResult:
        execute(device)
        return SweepResult(plan.number)

    executor: Any = SimpleNamespace(execute=run)
    table = Coefficients(base=pace) if pace is not None else None
    device = DeviceThread(executor, done.set_result, done.set_exception, lambda worker, hidden: hidden, table)
    device.start()
    device.sweep(SweepPlan(1))
    async with asyncio.timeout(PATIENCE):
        await done
    device.stop()
    return device


@pytest.mark.parametrize(
    ("takes", "pace", "slept"),
    [(0.2, PACE, [0.3]), (0.0, PACE, [0.5]), (0.5, PACE, []), (0.7, PACE, []), (0.2, None, [])],
)
async def test_a_sweep_is_held_to_its_pace(clock: Clock, takes: float, pace: float | None, slept: list[float]) -> None:
    def execute(device: DeviceThread) -> None:
        clock.now += takes

    began = clock.now
    await swept(execute, pace)
    assert clock.slept == slept
    assert clock.now - began == pytest.approx(max(takes, pace or 0.0))


@pytest.mark.parametrize(("pace", "late"), [(None, [0.0, 0.4, 0.7]), (PACE, [0.0, 0.0, 0.2])])
async def test_a_sweep_is_late_by_what_it_takes_beyond_its_pace(clock: Clock, pace: float | None, late: list[float]) -> None:
    """A pace slower than ``stall_timeout`` is no hang."""
    seen = []

    def execute(device: DeviceThread) -> None:
        began = clock.now
        for passed in (0.0, 0.4, 0.7):
            clock.now = began + passed
            seen.append(device.lateness())

    device = await swept(execute, pace)
    assert seen == pytest.approx(late)
    clock.now += 1000.0
    assert device.lateness() == 0.0, "nothing runs"
