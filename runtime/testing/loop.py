"""A deterministic event loop under virtual time, which jumps to the next timer when nothing is ready.

Owns virtual time, the order in which callbacks run (first in, first out; timers by time, then by age), and the *lives* that
callbacks belong to: a context variable says which simulated process a callback is of, so that a process can be stopped
where it stands (SIGSTOP) or never run again (SIGKILL: not even ``finally``). Whatever asks for a socket, a thread or a
signal gets NotImplementedError: it would not replay. Knows nothing of nodes.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MAX_SPIN = 1_000_000  # callbacks at one moment, after which time is taken to stand still for ever


class Stalled(Exception):
    """The simulation cannot end: nothing is left to happen, time ran out, or time stands still."""


class Life:
    """One simulated process. What is started in its ``context`` belongs to it, and so does all that this starts."""

    def __init__(self, name: str, program: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self.name, self.program = name, program  # what it runs, given its node
        self.running = True
        self.parked: list[asyncio.Handle] = []  # what fell due while it did not run
        self.context: Context = contextvars.Context()
        self.context.run(LIFE.set, self)

    def __str__(self) -> str:
        return self.name


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module. ``limit``: virtual seconds after which ``Stalled`` is raised."""

    def __init__(self, *, limit: float) -> None:
        self.limit = limit
        self.errors: list[dict[str, Any]] = []  # uncaught errors
        self._now = 0.0
        self._ready: deque[tuple[asyncio.Handle, Life | None]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Life | None]] = []
        self._order = itertools.count()
        self._cancelled = self._spin = 0
        self._running = self._closed = False

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, LIFE.get() if context is None else context.get(LIFE)))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Do the same as ``call_soon``, because there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        life = LIFE.get() if context is None else context.get(LIFE)
        heapq.heappush(self._timers, (when, next(self._order), handle, life))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # the base leaves the coroutine's result open
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if context is not None and LIFE not in context:  # a context without anything is still this process's
            context.run(LIFE.set, LIFE.get())
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect the error; ``Simulation.run`` raises it."""
        self.errors.append(context)

    def run_until_complete(self, future: Any) -> Any:
        done: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        with self._as_running_loop():
            while not done.done():
                self._turn()
        return done.result()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count a cancelled timer; asyncio calls this. Most timers are deadlines that are cancelled long before their
        time.
        """
        self._cancelled += 1
        if self._cancelled > 1000 and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # ---- processes

    def resume(self, life: Life) -> None:
        """Let it run again: first what fell due meanwhile, late and in order."""
        life.running = True
        parked, life.parked = life.parked, []
        self._ready.extend((handle, life) for handle in parked)

    # ---- running

    def _turn(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
        now, timers = self._now, self._timers
        while timers and timers[0][0] <= now:
            _, _, timer, life = heapq.heappop(timers)
            if not timer.cancelled():
                ready.append((timer, life))
        self._spin += len(ready)
        if self._spin > MAX_SPIN:
            raise Stalled(f"{self._spin} callbacks ran at {now:.6f} s and time did not pass: something waits in a loop")
        for _ in range(len(ready)):
            handle, owner = ready.popleft()
            if handle.cancelled():
                continue
            if owner is None or owner.running:
                handle._run()
            else:
                owner.parked.append(handle)

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise Stalled(f"nothing is left to happen at {self._now:.6f} s, and the scenario has not ended")
        if timers[0][0] > self.limit:
            raise Stalled(f"the scenario has not ended after {self.limit:g} s of virtual time")
        if timers[0][0] > self._now:
            self._now, self._spin = timers[0][0], 0

    @contextmanager
    def _as_running_loop(self) -> Iterator[None]:
        if self._running or self._closed:
            raise RuntimeError("this loop runs already or is closed")
        self._running, self._spin = True, 0
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        events._set_running_loop(self)
        try:
            yield
        finally:
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that was dropped half way."""
        self.create_task(generator.aclose())
