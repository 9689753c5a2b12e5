"""Device thread: the one thread of a worker that touches tensors.

Runs plans and control operations in the order in which they were given. The event loop queues the next plan while one runs,
so the thread continues without waiting for the loop. Results return to the loop as callbacks. The thread never touches a
socket and decides nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...gpu.backend import Backend
from ...gpu.device import DeviceSizes
from ...gpu.executor import Executor
from ...gpu.select import open_device
from ...policies.plan.coefficients import Coefficients
from ...policies.plan.cost import cost
from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.plan.time_slice import time_slice
from ...transport.link import Slot
from .messages import WorkerConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExecutedPlan:
    """A plan that has run. ``departed`` are the hidden states of its departures, in their order."""

    plan: SweepPlan
    result: SweepResult
    departed: list[memoryview | Slot]


OnSwept = Callable[[ExecutedPlan], None]
OnFatal = Callable[[BaseException], None]
LayOut = Callable[[str, memoryview], memoryview | Slot]


class DeviceQueue(Protocol):
    """The interface between a worker and its device: ``DeviceThread``, or a simulated device under virtual time."""

    def stop(self) -> None: ...

    def lateness(self) -> float: ...

    def sweep(self, plan: SweepPlan) -> None: ...

    def call(self, operation: Callable[[Executor], T]) -> asyncio.Future[T]: ...

    def call_in_steps(self, operation: Callable[[Executor], Iterator[None]]) -> asyncio.Future[None]: ...


OpenDevice = Callable[[WorkerConfig, Backend, int, OnSwept, OnFatal, LayOut], DeviceQueue]  # the int: bytes of a chunk


def start_device(
    config: WorkerConfig, backend: Backend, chunk: int, on_swept: OnSwept, on_fatal: OnFatal, lay_out: LayOut
) -> DeviceThread:
    """Start and return a device thread with an executor built from the worker's configuration."""
    sizes = DeviceSizes(
        rows=config.batching.max_rows,
        max_length=config.max_length,
        kv_layers=config.kv_layers,
        max_tokens=config.batching.sweep_tokens,
        page_size=config.worker_memory.page_size,
        budget=config.worker_memory.memory,
        chunk=chunk,
        protect=config.check,
    )
    executor = Executor(open_device(backend, sizes))
    thread = DeviceThread(executor, on_swept, on_fatal, lay_out, config.pace)
    thread.start()
    return thread


@dataclass(slots=True)
class Stepwise:
    """An operation that runs one step at a time."""

    operation: Callable[[Executor], Iterator[None]]
    future: asyncio.Future[None]
    steps: Iterator[None] | None = None  # None: not started


class DeviceThread:
    """Owner of the executor from ``start`` to ``stop``.

    ``on_swept`` and ``on_fatal`` run on the event loop, ``lay_out`` (of ``Outbox``) on the thread.
    """

    def __init__(
        self,
        executor: Executor,
        on_swept: OnSwept,
        on_fatal: OnFatal,
        lay_out: LayOut,
        pace: Coefficients | None = None,
    ) -> None:
        self._executor, self._pace = executor, pace
        self._on_swept = on_swept
        self._on_fatal = on_fatal
        self._lay_out = lay_out
        self._loop = asyncio.get_running_loop()
        self._work: deque[Callable[[], None]] = deque()
        self._stepwise: deque[Stepwise] = deque()  # run one after the other; used by the thread only
        self._ready = threading.Condition()
        self._stopped = False
        self._last = 0.0  # duration of the last sweep in seconds
        self._due = float("inf")  # monotonic time from which the running sweep counts as late
        # the executor's progress, and the monotonic time at which it was first seen
        self._progress, self._progress_at = -1, 0.0
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop after the work given so far. After ``timeout`` seconds a kernel that does not return is left behind."""
        with self._ready:
            self._stopped = True
            self._ready.notify()
        self._thread.join(timeout)

    def lateness(self) -> float:
        """Return the seconds since the running sweep was last seen to compute something; 0 when none runs.

        A pace is not counted. A sweep of a large model may take long: only one that stands still is late. Progress is only
        what ``lateness`` itself has seen, so it is called with every heartbeat.
        """
        now, progress = time.monotonic(), self._executor.progress()
        if progress != self._progress:
            self._progress, self._progress_at = progress, now
        return max(0.0, now - max(self._due, self._progress_at))

    def sweep(self, plan: SweepPlan) -> None:
        """Run a plan after all work given before."""
        self._give(lambda: self._sweep(plan))

    def call(self, operation: Callable[[Executor], T]) -> asyncio.Future[T]:
        """Run an operation on the executor after all work given before. The future carries its error."""
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                value = operation(self._executor)
            except Exception as error:
                self._post(_settle, future, None, error)
            else:
                self._post(_settle, future, value, None)

        self._give(work)
        return future

    def call_in_steps(self, operation: Callable[[Executor], Iterator[None]]) -> asyncio.Future[None]:
        """Run an operation one step at a time, after all work given before.

        Work given meanwhile runs before the next step. Only one such operation is under way at a time. Cancelling the future
        ends the operation before its next step.
        """
        stepwise = Stepwise(operation, self._loop.create_future())
        self._give(lambda: self._begin(stepwise))
        return stepwise.future

    def _begin(self, stepwise: Stepwise) -> None:
        self._stepwise.append(stepwise)
        if len(self._stepwise) == 1:
            self._step()

    def _step(self) -> None:
        """Run one step, and more within the time slice."""
        end = time.monotonic() + time_slice(self._last)
        while self._stepwise:
            current = self._stepwise[0]
            if self._stopped or current.future.cancelled() or self._advance(current):
                self._stepwise.popleft()
            if time.monotonic() >= end:
                break
        if self._stepwise:
            self._give(self._step)

    def _advance(self, current: Stepwise) -> bool:
        """Run one step. Return whether it was the last."""
        try:
            if current.steps is None:
                current.steps = current.operation(self._executor)
            next(current.steps)
        except StopIteration:
            self._post(_settle, current.future, None, None)
        except Exception as error:
            self._post(_settle, current.future, None, error)
        else:
            return False
        return True

    def _give(self, work: Callable[[], None]) -> None:
        with self._ready:
            self._work.append(work)
            self._ready.notify()

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stopped = True  # the loop is closed: results are no longer wanted

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._work and not self._stopped:
                    self._ready.wait()
                if not self._work:
                    return
                work = self._work.popleft()
            try:
                work()
            except BaseException as error:  # a failed plan leaves tables and KV undefined: the worker must end
                self._post(self._on_fatal, error)
                return

    def _sweep(self, plan: SweepPlan) -> None:
        began = time.monotonic()
        least = cost(plan, self._pace) if self._pace is not None else 0.0
        self._due = began + least
        ticket = self._executor.submit(plan)
        result = ticket.wait()
        departed = [
            self._lay_out(departure.worker, hidden)
            for departure, hidden in zip(plan.departures, ticket.departed, strict=True)
        ]
        rest = self._due - time.monotonic()
        if self._pace is not None and rest > 0:
            time.sleep(rest)
        self._due, self._last = float("inf"), time.monotonic() - began
        if self._pace is not None:  # logs and fits are to learn how long this worker's sweeps really take
            result.seconds = self._last
        self._post(self._on_swept, ExecutedPlan(plan, result, departed))


def _settle(future: asyncio.Future[T], value: T, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
