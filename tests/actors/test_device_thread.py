"""The device thread's pace and lateness, under a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors.worker import device_thread
from blockwright.actors.worker.device_thread import DeviceThread, ExecutedPlan
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.errors import BackendError
from blockwright.gpu.host_device import EndedSweep
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.plan.time_slice import time_slice
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until

PACE = 0.5  # seconds of each sweep
SOUND = {"enter": lambda: None, "check": lambda: None}  # of a device that works


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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(device_thread, "time", made)
    return made


async def swept(
    execute: Callable[[DeviceThread], None], pace: float | None, progress: Sequence[object] = ()
) -> tuple[DeviceThread, ExecutedPlan]:
    """Run one sweep whose execution is ``execute``, and which computes when ``progress`` grows."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def run(plan: SweepPlan) -> EndedSweep:
        execute(device)
        return EndedSweep(SweepResult(plan.number), [])

    executor: Any = SimpleNamespace(submit=run, progress=lambda: len(progress), **SOUND)
    table = Coefficients(base=pace) if pace is not None else None
    device = DeviceThread(executor, done.set_result, done.set_exception, lambda worker, hidden: hidden, table)
    device.start()
    device.sweep(SweepPlan(1))
    async with asyncio.timeout(PATIENCE):
        ended = await done
    device.stop()
    return device, ended


@pytest.mark.parametrize(
    ("takes", "pace", "slept"),
    [(0.2, PACE, [0.3]), (0.0, PACE, [0.5]), (0.5, PACE, []), (0.7, PACE, []), (0.2, None, [])],
)
async def test_a_sweep_is_held_to_its_pace(clock: Clock, takes: float, pace: float | None, slept: list[float]) -> None:
    def execute(device: DeviceThread) -> None:
        clock.now += takes

    began = clock.now
    _, done = await swept(execute, pace)
    assert clock.slept == slept
    assert clock.now - began == pytest.approx(max(takes, pace or 0.0))
    assert done.result.seconds == (pytest.approx(max(takes, pace)) if pace else 0.0), "as logs and fits see it"


@pytest.mark.parametrize(("pace", "late"), [(None, [0.0, 0.4, 0.7]), (PACE, [0.0, 0.0, 0.2])])
async def test_a_sweep_is_late_by_what_it_takes_beyond_its_pace(clock: Clock, pace: float | None, late: list[float]) -> None:
    """A pace slower than ``stall_timeout`` is no hang."""
    seen = []

    def execute(device: DeviceThread) -> None:
        began = clock.now
        for passed in (0.0, 0.4, 0.7):
            clock.now = began + passed
            seen.append(device.lateness())

    device, _ = await swept(execute, pace)
    assert seen == pytest.approx(late)
    clock.now += 1000.0
    assert device.lateness() == 0.0, "nothing runs"


async def test_a_sweep_that_computes_is_not_late_however_long_it_takes(clock: Clock) -> None:
    """A sweep of a large model on a slow machine is no hang; it is one from the time at which it stands still."""
    seen, progress = [], [0]

    def execute(device: DeviceThread) -> None:
        for _ in range(5):
            clock.now += 9.0
            progress.append(0)
            seen.append(device.lateness())
        for _ in range(2):
            clock.now += 6.0
            seen.append(device.lateness())

    await swept(execute, None, progress)
    assert seen == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 12.0])


class LateTicket:
    """A plan that runs until the test says so."""

    def __init__(self, plan: SweepPlan) -> None:
        self.result = SweepResult(plan.number)
        self.departed = [memoryview(b"%d" % plan.number) for _ in plan.departures]
        self.ended = threading.Event()
        self.error: BaseException | None = None

    @property
    def ready(self) -> bool:
        return self.ended.is_set()

    def wait(self) -> SweepResult:
        assert self.ended.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.result


class BusyDevice:
    """A device thread whose plans still run when they are submitted. ``came``: the reports to the loop, in order."""

    def __init__(self, lay_out: Callable[[str, Any], Any] = lambda worker, hidden: hidden) -> None:
        self.tickets: dict[int, LateTicket] = {}
        self.came: list[object] = []
        executor: Any = SimpleNamespace(submit=self._submit, progress=lambda: 0, **SOUND)
        self.thread = DeviceThread(executor, lambda swept: self.came.append(swept.result.number), self.came.append, lay_out)
        self.thread.start()

    def _submit(self, plan: SweepPlan) -> LateTicket:
        self.tickets[plan.number] = LateTicket(plan)
        return self.tickets[plan.number]

    async def submitted(self, number: int) -> None:
        await until(lambda: number in self.tickets)

    async def reported(self, what: object) -> None:
        await until(lambda: what in self.came)


async def test_results_come_in_the_order_of_the_plans_though_later_ones_have_ended() -> None:
    """The next plan is submitted while one runs, and an answer does not overtake the results before it."""
    device = BusyDevice()
    for number in (1, 2):
        device.thread.sweep(SweepPlan(number))
    answer = device.thread.call(lambda executor: "answer")
    device.thread.sweep(SweepPlan(3))
    await device.submitted(3)  # the answer is known
    for number in (3, 2):
        device.tickets[number].ended.set()
    await asyncio.sleep(0)
    assert not answer.done()
    assert not device.came
    device.tickets[1].ended.set()
    assert await answer == "answer"
    assert device.came[:2] == [1, 2]
    await device.reported(3)
    assert device.came == [1, 2, 3]
    device.thread.stop()


async def test_what_leaves_is_laid_out_when_its_plan_has_ended() -> None:
    laid: list[tuple[str, bytes, str]] = []

    def lay_out(worker: str, hidden: memoryview) -> memoryview:
        laid.append((worker, bytes(hidden), threading.current_thread().name))
        return hidden

    device = BusyDevice(lay_out)
    departures: Any = [SimpleNamespace(worker="w1")]
    device.thread.sweep(SweepPlan(1, departures=departures))
    await device.submitted(1)
    assert not laid
    device.tickets[1].ended.set()
    await device.reported(1)
    assert laid == [("w1", b"1", "collector")]
    device.thread.stop()


async def test_a_plan_is_late_from_when_the_one_before_it_has_ended(clock: Clock) -> None:
    device = BusyDevice()
    for number in (1, 2):
        device.thread.sweep(SweepPlan(number))
    await device.submitted(2)
    device.thread.lateness()  # sees the progress so far
    clock.now += 5.0
    assert device.thread.lateness() == 5.0
    device.tickets[1].ended.set()
    await device.reported(1)
    clock.now += 2.0
    await until(lambda: device.thread.lateness() == 2.0)
    device.tickets[2].ended.set()
    await device.reported(2)
    await until(lambda: device.thread.lateness() == 0.0)
    device.thread.stop()


async def test_a_plan_that_fails_while_it_runs_ends_the_worker() -> None:
    device, error = BusyDevice(), RuntimeError("an illegal address")
    for number in (1, 2):
        device.thread.sweep(SweepPlan(number))
    await device.submitted(2)
    device.tickets[1].error = error
    for ticket in device.tickets.values():
        ticket.ended.set()
    await device.reported(error)
    device.thread.stop()
    assert device.came == [error], "what came after it is undefined"


class Steps:
    """Operations that take three steps each, and sweeps, in the order in which a device runs them."""

    def __init__(self) -> None:
        self.order: list[str] = []
        executor: Any = SimpleNamespace(submit=self._submit, progress=lambda: 0, **SOUND)
        self.device = DeviceThread(executor, lambda swept: None, self._fail, lambda worker, hidden: hidden)
        self.given = iter(range(1, 100))
        self.meanwhile: dict[str, Callable[[], object]] = {}  # what happens during a step or sweep

    def _submit(self, plan: SweepPlan) -> EndedSweep:
        self._note(f"sweep {plan.number}")
        return EndedSweep(SweepResult(plan.number), [])

    def _fail(self, error: BaseException) -> None:
        raise error

    def _note(self, what: str) -> None:
        self.order.append(what)
        self.meanwhile.pop(what, lambda: None)()

    def sweep(self) -> None:
        self.device.sweep(SweepPlan(next(self.given)))

    def load(self, name: str) -> asyncio.Future[None]:
        def operation(executor: Any) -> Iterator[None]:
            for step in "123":
                self._note(f"{name}{step}")
                yield

        return self.device.call_in_steps(operation)

    async def finish(self, *futures: asyncio.Future[None]) -> list[str]:
        self.device.start()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*futures, return_exceptions=True)
            await self.device.call(lambda executor: None)
        self.device.stop()
        return self.order


async def test_sweeps_that_wait_run_before_the_next_step() -> None:
    steps = Steps()
    steps.sweep()
    load = steps.load("a")
    steps.meanwhile = {"a1": lambda: (steps.sweep(), steps.sweep()), "sweep 3": steps.sweep}
    assert await steps.finish(load) == ["sweep 1", "a1", "sweep 2", "sweep 3", "a2", "sweep 4", "a3"]


async def test_of_several_operations_one_is_under_way_at_a_time() -> None:
    steps = Steps()
    loads = steps.load("a"), steps.load("b")
    steps.meanwhile = {"a2": steps.sweep, "b1": steps.sweep}
    assert await steps.finish(*loads) == ["a1", "a2", "sweep 1", "a3", "b1", "sweep 2", "b2", "b3"]


async def test_steps_that_are_short_beside_a_sweep_share_a_gap(clock: Clock) -> None:
    steps = Steps()
    steps.sweep()
    loads = steps.load("a"), steps.load("b")
    late = time_slice(0.4)

    def take(seconds: float) -> Callable[[], None]:
        return lambda: clock.sleep(seconds)

    steps.meanwhile = {"sweep 1": take(0.4), "a1": steps.sweep, "b1": take(late / 2), "b2": take(late / 2)}
    assert await steps.finish(*loads) == ["sweep 1", "a1", "a2", "a3", "b1", "b2", "sweep 2", "b3"]


async def test_an_operation_that_is_cancelled_takes_no_further_step_and_the_next_begins() -> None:
    steps = Steps()
    first, second = steps.load("a"), steps.load("b")
    first.cancel()
    assert await steps.finish(first, second) == ["b1", "b2", "b3"]


async def test_an_operation_that_fails_half_way_holds_nothing_up() -> None:
    steps = Steps()

    def fail() -> None:
        raise ValueError("a short file")

    steps.meanwhile = {"a2": fail}
    loads = steps.load("a"), steps.load("b")
    assert await steps.finish(*loads) == ["a1", "a2", "b1", "b2", "b3"]
    with pytest.raises(ValueError, match="a short file"):
        loads[0].result()
    assert loads[1].result() is None


async def test_a_device_that_is_stopped_takes_no_further_step() -> None:
    steps = Steps()
    steps.load("a")
    steps.meanwhile = {"a1": lambda: setattr(steps.device, "_stopped", True)}
    steps.device.start()
    steps.device.stop()
    assert steps.order == ["a1"]


@claim("An operation that fails on a device which has failed for good ends the worker, and answers no caller", of="faults")
async def test_a_device_that_failed_for_good_refuses_nobody() -> None:
    """An error of the operation alone is its caller's; with the device's, nothing after it runs."""
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    streams = DeferredStreams()
    executor: Any = SimpleNamespace(enter=lambda: None, check=streams.check)
    device = DeviceThread(executor, lambda swept: None, failed.set_result, lambda worker, hidden: hidden)
    device.start()

    def wrong(executor: Any) -> Iterator[None]:
        raise ValueError("a tensor is missing")

    def fault() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def settles(executor: Any) -> None:
        streams.stream().launch(fault)
        streams.settle()

    for given in (device.call(wrong), device.call_in_steps(wrong)):
        with pytest.raises(ValueError, match="a tensor is missing"):
            await given
    answers = [device.call(settles), device.call(lambda executor: "not run")]
    async with asyncio.timeout(PATIENCE):
        error = await failed
    assert isinstance(error, BackendError)
    assert "work of the device has failed before (CUDA error: an illegal memory access was encountered)" in str(error)
    device.stop()
    assert not any(answer.done() for answer in answers)
