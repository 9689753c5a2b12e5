"""Grammar compiler of a worker: compiles grammars on a thread beside the device's, one at a time.

The sweep machine says which grammars are wanted, and draws no token with one before it hears that the device has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from ...gpu.executor import Executor
from ...gpu.sampling.grammars import GrammarError, GrammarStore
from ...policies.plan.grammar import Grammar
from ...policies.sweep.events import Event, GrammarReady
from .device_thread import DeviceQueue


class GrammarCompiler:
    """Owner of the grammars being compiled. ``apply`` passes an event to the sweep machine."""

    def __init__(self, device: DeviceQueue, apply: Callable[[Event], None]) -> None:
        self._device = device
        self._apply = apply
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Cancel what is under way. The worker ends."""
        for task in self._tasks:
            task.cancel()

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar, and tell the sweep machine the outcome."""
        self._begin(self._compile(grammar))

    def release(self, key: bytes) -> None:
        """Let go of a grammar that no sequence has any more."""
        self._begin(self._release(key))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _compile(self, grammar: Grammar) -> None:
        fault = ""
        async with self._turn:
            try:
                await asyncio.to_thread((await self._device.call(_store)).compile, grammar)
            except GrammarError as error:
                fault = str(error)
            except Exception as error:  # of the library, which must not end a worker
                fault = f"the grammar cannot be compiled ({type(error).__name__}: {error}); send a simpler one"
            self._apply(GrammarReady(grammar.key, fault))

    async def _release(self, key: bytes) -> None:
        async with self._turn:
            (await self._device.call(_store)).release(key)


def _store(executor: Executor) -> GrammarStore:
    return executor.tables.compiled
