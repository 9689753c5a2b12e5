"""Grammar compiler of a worker: compiles grammars on a thread beside the device's, one at a time; tenants take turns.

The sweep machine says which grammars are wanted, and draws no token with one before it hears that the device has it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import count

from ...gpu.executor import Executor
from ...gpu.sampling.grammars import GrammarError, GrammarStore
from ...policies.plan.grammar import Grammar
from ...policies.sweep.compile_queue import FIRST_TRY, CompileQueue
from ...policies.sweep.events import Event, GrammarReady
from .device_thread import DeviceQueue

UNBOUNDED = 1 << 30  # sequences wait for these grammars, and their number is limited


class GrammarCompiler:
    """Owner of the grammars that wait to be compiled. ``apply`` passes an event to the sweep machine."""

    def __init__(self, device: DeviceQueue, apply: Callable[[Event], None], weights: Mapping[str, int]) -> None:
        self._device = device
        self._apply = apply
        self._queue = CompileQueue(weights, UNBOUNDED, UNBOUNDED)
        self._grammars: dict[int, Grammar] = {}  # that wait, by number
        self._waiting: dict[bytes, int] = {}  # the same: key -> number
        self._numbers = count()
        self._running = b""  # key of the grammar that is being compiled
        self._unused = False  # no sequence has that any more
        self._store: GrammarStore | None = None
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Cancel what is under way. The worker ends."""
        if self._task is not None:
            self._task.cancel()

    def turn_to(self, apply: Callable[[Event], None]) -> None:
        """Serve the next life of the worker from now on."""
        self._apply = apply

    def compile(self, grammar: Grammar, tenant: str) -> None:
        """Compile a grammar in its tenant's turn, and tell the sweep machine the outcome."""
        if grammar.key == self._running:
            self._unused = False
            return
        number = self._waiting[grammar.key] = next(self._numbers)
        self._grammars[number] = grammar
        self._queue.add(number, tenant)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compile_all())

    def release(self, key: bytes) -> None:
        """Let go of a grammar whose memory was taken. One that still waits is not compiled."""
        if (number := self._waiting.pop(key, None)) is not None:
            self._queue.remove(number)
            del self._grammars[number]
        elif key == self._running:
            self._unused = True
        elif self._store is not None:
            self._store.release(key)

    async def _compile_all(self) -> None:
        if self._store is None:
            self._store = await self._device.call(_store)  # once, since it may wait for a sweep
        store = self._store
        while (taken := self._queue.take()) is not None:
            number, tenant, _ = taken
            grammar = self._grammars.pop(number)
            self._running = grammar.key
            del self._waiting[grammar.key]
            fault, seconds = await asyncio.to_thread(_compile, store, grammar)
            self._queue.charge(tenant, FIRST_TRY, seconds)
            self._running = b""
            if self._unused:
                self._unused = False
                store.release(grammar.key)
            else:
                self._apply(GrammarReady(grammar.key, fault))


def _compile(store: GrammarStore, grammar: Grammar) -> tuple[str, float]:
    """Return why a grammar cannot be compiled, "": it is, and the processor time."""
    began = time.thread_time()
    fault = ""
    try:
        store.compile(grammar)
    except GrammarError as error:
        fault = str(error)
    except Exception as error:  # of the library, which must not end a worker
        fault = f"the grammar cannot be compiled ({type(error).__name__}: {error}); send a simpler one"
    return fault, time.thread_time() - began


def _store(executor: Executor) -> GrammarStore:
    return executor.tables.compiled
