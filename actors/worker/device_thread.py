"""Device thread: the one thread of a worker that touches tensors.

Submits plans and runs control operations in the order in which they were given. The event loop queues the next plan while
one runs, so the thread continues without waiting for the loop. Results return to the loop as callbacks, in that order, too.
If a device is still busy with a plan that was submitted, a second thread waits for its ticket, and this one goes on. The
threads never touch a socket and decide nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ...gpu.backend import Backend
from ...gpu.device import DeviceSizes, Outgoing, Ticket
from ...gpu.executor import Executor
from ...gpu.select import open_device
from ...policies.plan.coefficients import Coefficients
from ...policies.plan.cost import cost
from ...policies.plan.sweep_plan import Departure, Step, SweepPlan, SweepResult
from ...policies.plan.time_slice import time_slice
from ...policies.sweep.guesses import left_to_send, part_of, standing
from ...transport.device_memory import DeviceBytes
from ...transport.link import Slot
from .messages import WorkerConfig

T = TypeVar("T")
Laid = memoryview | bytearray | Slot | DeviceBytes  # as a link takes it


@dataclass(frozen=True, slots=True)
class ExecutedPlan:
    """A plan that has run. ``departed`` are the hidden states of ``departures``, in their order."""

    plan: SweepPlan
    result: SweepResult
    departures: list[Departure]  # of the plan, without rows whose guesses stand
    departed: list[Laid]


OnSwept = Callable[[ExecutedPlan], None]
OnFatal = Callable[[BaseException], None]
OnGuess = Callable[[Departure, Laid], None]
LayOut = Callable[[str, Outgoing], Laid]


class DeviceQueue(Protocol):
    """The interface between a worker and its device: ``DeviceThread``, or a simulated device under virtual time."""

    def stop(self) -> None: ...

    def turn_to(self, on_swept: OnSwept, on_fatal: OnFatal, lay_out: LayOut) -> None: ...

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


class Collector:
    """The path of results to the loop, in the order in which the work is given.

    Work is done at once, or by a thread of its own behind a plan that still runs. The thread begins with the first such
    plan, so that a device whose tickets are ready when they are given needs none. ``on_fatal`` is called with an error of
    the thread, and nothing is done after it.
    """

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self._works: deque[Callable[[], None]] = deque()  # the first one is under way
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True if a plan still runs."""
        return bool(self._works)

    def give(self, work: Callable[[], None], ready: bool = True) -> None:
        """Do this work after all that was given before. It does not wait for the device if it is ``ready``."""
        with self._changed:
            at_once = ready and not self._works
            if not at_once:
                self._works.append(work)
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
                    self._thread.start()
        if at_once:
            work()

    def stop(self, timeout: float) -> None:
        """Stop after the work given so far, or after ``timeout`` seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._works and not self._stopped:
                    self._changed.wait()
                if not self._works:
                    return
                work = self._works[0]
            try:
                work()
            except BaseException as error:
                self._on_fatal(error)
                return
            with self._changed:
                self._works.popleft()


class DeviceThread:
    """Owner of the executor from ``start`` to ``stop``.

    ``on_swept`` and ``on_fatal`` run on the event loop, ``lay_out`` (of ``Outbox``) on the thread that collects.
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
        executor.guessed = self._guess
        self.on_guess: OnGuess = lambda departure, hidden: None  # runs on the event loop
        self._began = 0.0  # monotonic time at which the sweep under way began
        self._on_swept = on_swept
        self._on_fatal = on_fatal
        self._lay_out = lay_out
        self._loop = asyncio.get_running_loop()
        self._work: deque[Callable[[], None]] = deque()
        self._stepwise: deque[Stepwise] = deque()  # run one after the other; used by the thread only
        self._ready = threading.Condition()
        self._stopped = False
        self._collector = Collector(lambda error: self._post(self._on_fatal, error))
        self._last = 0.0  # duration of the last sweep in seconds
        self._ended = float("-inf")  # monotonic time at which it ended
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
        self._collector.stop(timeout)

    def turn_to(self, on_swept: OnSwept, on_fatal: OnFatal, lay_out: LayOut) -> None:
        """Report to the next life of the worker from now on. No plan may be open."""
        self._on_swept, self._on_fatal, self._lay_out = on_swept, on_fatal, lay_out

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
                self._executor.check()  # of a device that has failed for good the worker ends, and no caller is refused
                self._answer(future, None, error)
            else:
                self._answer(future, value, None)

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
            self._answer(current.future, None, None)
        except Exception as error:
            self._executor.check()
            self._answer(current.future, None, error)
        else:
            return False
        return True

    def _give(self, work: Callable[[], None]) -> None:
        with self._ready:
            self._work.append(work)
            self._ready.notify()

    def _answer(self, future: asyncio.Future[T], value: Any, error: BaseException | None) -> None:
        """Settle a future behind the results of all plans submitted before."""
        self._collector.give(lambda: self._post(_settle, future, value, error))

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            self._stopped = True  # the loop is closed: results are no longer wanted

    def _run(self) -> None:
        work: Callable[[], None] = self._executor.enter
        while True:
            try:
                work()
            except BaseException as error:  # a failed plan leaves tables and KV undefined: the worker must end
                self._post(self._on_fatal, error)
                return
            with self._ready:
                while not self._work and not self._stopped:
                    self._ready.wait()
                if not self._work:
                    return
                work = self._work.popleft()

    def _sweep(self, plan: SweepPlan) -> None:
        began = self._began = max(time.monotonic(), self._ended)
        least = cost(plan, self._pace) if self._pace is not None else 0.0
        if not self._collector.busy:
            self._due = began + least
        ticket = self._executor.submit(plan)
        self._collector.give(lambda: self._collect(plan, ticket, began, least), ticket.ready)

    def _collect(self, plan: SweepPlan, ticket: Ticket, submitted: float, least: float) -> None:
        """Wait for a plan's result, and return it to the loop."""
        began = max(submitted, self._ended)  # plans run one after the other
        self._due = began + least
        result = ticket.wait()
        stand = standing(plan, result) if plan.guesses else set()
        leaving = zip(plan.departures, ticket.departed, strict=True)
        left = [without(departure, hidden, stand) if stand else (departure, hidden) for departure, hidden in leaving]
        departed = [self._lay_out(departure.worker, hidden) for departure, hidden in left]
        rest = self._due - time.monotonic()
        if self._pace is not None and rest > 0:
            time.sleep(rest)
        self._due, self._ended = float("inf"), time.monotonic()
        self._last = self._ended - began
        if self._pace is not None:  # logs and fits are to learn how long this worker's sweeps really take
            result.seconds = self._last
        self._post(self._on_swept, ExecutedPlan(plan, result, [departure for departure, _ in left], departed))

    def _guess(self, plan: SweepPlan, step: Step, departure: Departure, hidden: memoryview) -> None:
        """Let a guess leave while its plan goes on. With a pace, not before its steps would have ended."""
        if self._pace is not None:
            done = plan.steps[: plan.steps.index(step) + 1]
            rest = self._began + cost(replace(plan, steps=done), self._pace) - time.monotonic()
            if rest > 0:
                time.sleep(rest)
        self._post(self.on_guess, departure, self._lay_out(departure.worker, hidden))


def without(departure: Departure, hidden: Outgoing, stand: set[int]) -> tuple[Departure, Outgoing]:
    """Return a departure and its hidden states without the rows in ``stand``."""
    places = left_to_send(departure, stand)
    if len(places) == len(departure.batch):
        return departure, hidden
    assert isinstance(hidden, memoryview), "guesses are computed where the host can address hidden states"
    token = hidden.nbytes // max(1, sum(row.count for row in departure.rows))
    pieces: list[memoryview] = []
    at = 0
    for place, row in enumerate(departure.rows):
        if place in places:
            pieces.append(hidden[at : at + row.count * token])
        at += row.count * token
    return part_of(departure, places), memoryview(b"".join(pieces))


def _settle(future: asyncio.Future[T], value: T, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
