"""The controller's calls to workers: load, unload, report the room. Calls to one worker are made one after the other.

A question or its answer may be lost although the worker lives, so each is asked again until an answer comes. The serial
tells the worker's blocks whether they were asked before. A worker that has lost its way to the head, and may come back as
the same life, is asked until it answers or is down.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ...policies.cluster.application_life import model_of
from ...policies.control import events
from ...policies.control.adoption import unwanted
from ...policies.control.loads import NoCapacity, SourcesWanted
from ...policies.control.state import ControllerState
from ...policies.requests.refusal import Refusal
from ...runtime.actor.actor import ActorNode
from ...runtime.actor.ref import Ref
from ...runtime.base.clock import first_within
from ...runtime.base.errors import NodeDown, RemoteError, RuntimeFault
from ...transport.clock import Clock
from ..gateway.port import DrainAnswered, RefusedChange
from ..worker.messages import BlockLoaded, WorkerStatus

log = logging.getLogger("blockwright.controller")
LOAD_TIMEOUT = 600.0  # timeout of loading one block
ANSWER_TIMEOUT = 5.0  # timeout of a worker that only looks something up
SERIAL_BITS = 20  # a head asks a worker for fewer things than this makes numbers
AGAIN = 2.0  # seconds without an answer until the worker is asked again
AWAY = 0.1  # seconds until a worker that cannot be reached is asked again


async def ask_until_answered(clock: Clock, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return the first answer, or raise the first error, of a question that is repeated every ``AGAIN`` seconds."""
    asked: list[asyncio.Task[Any]] = []
    try:
        while not (done := [task for task in asked if task.done()]):
            asked.append(asyncio.create_task(ask()))
            await first_within(clock, AGAIN, asked)
        return done[0].result()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


class WorkerCalls:
    """The calls to the workers of one cluster (see the module).

    publishing: the lock held while a publication leaves. handle: takes a worker's answer. kill: ends a worker that does
    not answer, with the reason. state: only read here. outlived: workers outlive heads, and so may come back as the same
    life when they were out of reach.
    """

    def __init__(
        self,
        node: ActorNode,
        publishing: asyncio.Lock,
        handle: Callable[[events.Event], object],
        kill: Callable[[str, str], None],
        state: ControllerState,
        *,
        outlived: bool,
    ) -> None:
        self._node = node
        self._publishing = publishing
        self._handle = handle
        self._kill = kill
        self._state, self._outlived = state, outlived
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Above those of earlier heads, whose numbers are lower.
        self._serials = itertools.count(((node.incarnation - 1) << SERIAL_BITS) + 1)

    async def load(self, effect: events.Load) -> None:
        worker = effect.worker
        incarnation = effect.incarnation
        load = effect.load
        kind: Any = BlockLoaded | NoCapacity | SourcesWanted
        async with self._order[worker]:
            blocks, serial = self._blocks(worker, incarnation), next(self._serials)
            try:
                answer = await self._ask(
                    worker, incarnation, lambda: blocks.load(load, serial, timeout=LOAD_TIMEOUT, returns=kind)
                )
            except NodeDown:
                return  # reported by the cluster membership
            except RemoteError as error:
                self._handle(events.LoadFailed(worker, incarnation, load, error.text))
            except RuntimeFault as error:
                if not self._node.stopping:
                    self._kill(worker, f"it did not load block {load.first}:{load.last} of {load.holder}: {error}")
            else:
                what = worker, incarnation, load
                if isinstance(answer, NoCapacity):
                    self._handle(events.LoadRefused(*what, answer))
                elif isinstance(answer, SourcesWanted):
                    self._handle(events.LoadLacks(*what, tuple(answer.components)))
                else:
                    self._handle(events.Loaded(*what, answer.new_bytes, answer.seconds))

    async def unload(self, effect: events.Unload) -> None:
        async with self._order[effect.worker]:  # lock first, so that loads in its place come after it
            async with self._publishing:  # wait until earlier publications are out
                pass
            blocks, serial = self._blocks(effect.worker, effect.incarnation), next(self._serials)
            try:
                ids = list(effect.ids)
                await self._ask(effect.worker, effect.incarnation, lambda: blocks.unload(effect.holder, ids, serial))
            except NodeDown:
                return
            except RuntimeFault as error:
                log.warning("worker %s did not unload %s: %s", effect.worker, model_of(effect.holder), error)

    async def room(self, effect: events.AskCapacity) -> WorkerStatus | None:
        """Return the worker's status before anything else is asked of it; None if it is gone.

        What it has kept of a former life and is not wanted there is unloaded before.
        """
        worker, incarnation = effect.worker, effect.incarnation
        async with self._order[worker]:
            try:
                told = await self._status(worker, incarnation)
                if left := unwanted(self._state, worker, told.unclaimed):
                    blocks = self._blocks(worker, incarnation)
                    for holder, ids in left.items():
                        serial = next(self._serials)
                        await self._ask(worker, incarnation, partial(blocks.unload, holder, ids, serial))
                    told = await self._status(worker, incarnation)
            except NodeDown:
                return None
            except RuntimeFault as error:
                self._kill(effect.worker, f"it did not tell its status: {error}")
                return None
            return told

    async def _status(self, worker: str, incarnation: int) -> WorkerStatus:
        """Return the status of that life. Raises what ``_ask`` raises."""
        status: WorkerStatus = await self._ask(worker, incarnation, lambda: self.status(worker, ANSWER_TIMEOUT))
        return status

    async def status(self, worker: str, seconds: float) -> WorkerStatus:
        return await self._node.ref(f"{worker}/worker").status(timeout=seconds, returns=WorkerStatus)

    async def _ask(self, worker: str, incarnation: int, question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return the answer of that life. Raises NodeDown once it is over, and what the question raises."""
        while True:
            try:
                return await ask_until_answered(self._node.clock, question)
            except NodeDown:
                if not self._may_return(worker, incarnation):
                    raise
            await first_within(self._node.clock, AWAY, [])

    def _may_return(self, worker: str, incarnation: int) -> bool:
        """Return whether that life of a worker may come back to this head, if it is out of reach."""
        record = self._state.workers.get(worker) if self._outlived else None
        return record is not None and record.alive and record.incarnation == incarnation and not self._node.stopping

    def _blocks(self, worker: str, incarnation: int) -> Ref:
        return self._node.ref(f"{worker}/blocks#{incarnation}")


def drain_worker(
    state: ControllerState, worker: str, drain: bool, handle: Callable[[events.ScalingEvent], object]
) -> DrainAnswered:
    """Start or end a drain. Asking for the current state is no error."""
    if (known := state.workers.get(worker)) is None:
        message = f"worker {worker!r} does not exist; there are: {', '.join(state.workers)}"
        return DrainAnswered(refused=RefusedChange(Refusal.UNKNOWN_WORKER, message, "id"))
    if drain and worker not in state.scaling.drained and (why := state.scaling.undrainable(worker, state.holdings)):
        return DrainAnswered(refused=RefusedChange(Refusal.CONFLICT, f"worker {worker} cannot be drained: {why}", "id"))
    handle(events.DrainWorker(worker, drain))
    return DrainAnswered(running=known.running, waiting=known.waiting)
