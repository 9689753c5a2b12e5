"""The supervisor of a worker's deployed blocks: starts an actor for each loaded block, counts its use, ends it when gone.

A block that ends by a fault ends this actor, and with it the worker's process, since it would no longer be known what is
loaded. The worker reports on all blocks in one message, which costs work for used blocks only, and no further message.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from ...policies.cluster.scaling import UNUSED, BlockPlace, PressedBlock, Queues, RouteQueue
from ...policies.cluster.worker_size import WorkerReport
from ...policies.control.adoption import KeptState, ToldWorker, newest
from ...policies.control.events import HeldBlock
from ...policies.control.loads import LoadBlock
from ...runtime.actor.actor import Actor, Crash
from ...runtime.actor.endpoint import endpoint
from ...runtime.actor.ref import Ref
from ...runtime.base.down import Down, abnormal
from ...runtime.base.errors import RemoteError
from ..worker.messages import BlockLoaded, WorkerStatus
from .actor import ANSWER, LOAD_TIMEOUT, BlockActor, BlockRefused, LoadAnswer
from .messages import BlockStatus, LastUse


@dataclass(slots=True)
class Deployed:
    """A block with an actor."""

    ref: Ref
    ids: frozenset[bytes]  # ids of components and deltas
    last: LastUse
    order: tuple[tuple[bytes, ...], ...]  # the ids of each component in turn
    places: dict[str, BlockPlace] = field(default_factory=dict)  # by application that it was loaded for
    released: dict[str, set[bytes]] = field(default_factory=dict)  # ids of components that an application gave up alone
    busy: int = 0  # loads in progress


class Blocks(Actor):
    """The blocks of one worker (see the module).

    controller: its address. report: what the worker reported when it joined, which it did by itself if ``joined``.
    """

    def __init__(self, controller: str, report: WorkerReport | None = None, joined: bool = False) -> None:
        self._controller = controller
        self._report, self._joined = report, joined
        self._kept: KeptState | None = None  # for the next head
        self._deployed: dict[str, Deployed] = {}  # by actor
        self._of: dict[str, dict[str, Deployed]] = {}  # application -> its blocks, by actor
        self._used: dict[str, Deployed] = {}  # blocks in use when last counted
        self._changing = asyncio.Lock()
        self._serial = 0  # serial of the controller's last call

    async def on_start(self) -> None:
        self._worker = self.node.ref(f"{self.node.name}/worker")
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def on_stop(self) -> None:
        self._answer.cancel()

    async def on_down(self, down: Down) -> None:
        if abnormal(down.cause) and down.actor in self._deployed:
            raise Crash(f"block {down.actor} ended: {down.cause}")

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock, serial: int) -> LoadAnswer:
        """Deploy a block for one more application. Raises BlockRefused with the worker's sentence."""
        return cast(LoadAnswer, await self._once(serial, partial(self._load, block)))

    async def _load(self, block: LoadBlock) -> LoadAnswer:
        name, one = await self._deploy(block)
        try:
            loaded: LoadAnswer = await one.ref.load(block, timeout=LOAD_TIMEOUT, returns=ANSWER)
        except RemoteError as error:
            raise BlockRefused(error.text) from None
        else:
            if isinstance(loaded, BlockLoaded):
                one.released.pop(block.holder, None)
                one.places[block.holder] = BlockPlace(block.holder, block.first, block.last)
                self._of.setdefault(block.holder, {})[name] = one
            return loaded
        finally:
            one.busy -= 1
            if not one.places:
                await self.gone(name)

    @endpoint(concurrent=True)
    async def unload(self, holder: str, ids: list[bytes], serial: int) -> int:
        """Release components of an application; return the bytes of the worker's pool that become free."""
        return cast(int, await self._once(serial, partial(self._unload, holder, ids)))

    async def _unload(self, holder: str, ids: list[bytes]) -> int:
        rest, freed = dict.fromkeys(ids), 0
        for name, one in list(self._of.get(holder, {}).items()):
            if one.ids <= rest.keys():
                del one.places[holder], self._of[holder][name]
                one.released.pop(holder, None)
                mine = [id for id in ids if id in one.ids]
                for id in mine:
                    rest.pop(id, None)
                freed += await one.ref.unload(holder, mine, returns=int)
        if not self._of.get(holder):
            self._of.pop(holder, None)
        for one in self._of.get(holder, {}).values():
            one.released.setdefault(holder, set()).update(one.ids & rest.keys())
        if rest:
            freed += await self._worker.unload(holder, list(rest), "", returns=int)
        return freed

    @endpoint(concurrent=True)
    async def gone(self, name: str) -> None:
        """End the actor of a block without holders that no open plan names, unless it is being loaded again."""
        async with self._changing:
            one = self._deployed.get(name)
            if one is not None and not one.busy and not one.places:
                del self._deployed[name]
                self._used.pop(name, None)
                await self.node.stop_actor(one.ref, drain=0.0)

    @endpoint
    async def report(self, queues: list[RouteQueue]) -> None:
        """Take the worker's report of all queues, sent with each heartbeat; tell the controller of pressed blocks."""
        now, counted = self.node.clock.now(), Queues(queues)
        used = {name: one for application in counted.of for name, one in self._of.get(application, {}).items()}
        for one in (one for name, one in self._used.items() if name not in used):
            one.last = LastUse(UNUSED, one.last.at)
        self._used = used
        pressed: list[PressedBlock] = []
        for one in used.values():
            use, pressure = counted.use(one.places.values())
            one.last = LastUse(use, now if use.tokens else one.last.at)
            if pressure is not None:
                pressed.append(pressure)
        if pressed:
            self.node.ref(self._controller).pressed.cast(self.node.name, self.node.incarnation, pressed)

    @endpoint
    async def idle(self, applications: list[str]) -> None:
        """Tell the controller of a block deployed for a burst that was not used for a while."""
        self.node.ref(self._controller).idle.cast(self.node.name, self.node.incarnation, applications)

    @endpoint(concurrent=True)
    async def last_use(self, name: str) -> LastUse:
        return self._deployed[name].last

    @endpoint(concurrent=True)
    async def statuses(self, limit: int) -> list[BlockStatus]:
        """Return the statuses of at most ``limit`` blocks, the longest queues first, from their actors."""
        found = sorted(self._deployed.values(), key=lambda one: (-one.last.use.pressure, -one.last.at))[:limit]
        asked = [one.ref.status(returns=BlockStatus) for one in found]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, BlockStatus)]

    @endpoint(urgent=True)
    async def keep(self, state: KeptState) -> None:
        """Keep the controller's state for the next head."""
        self._kept = newest((self._kept, state))

    @endpoint(urgent=True)
    async def tell(self) -> ToldWorker:
        """Tell a new head what this worker holds."""
        held = tuple(
            HeldBlock(holder, depth, depth + 1, ids)
            for one in self._deployed.values()
            for holder, place in one.places.items()
            for depth, ids in enumerate(one.order, place.first)
            if one.released.get(holder, set()).isdisjoint(ids)
        )
        version: int = await self._worker.version(returns=int)
        status: WorkerStatus = await self._worker.status(returns=WorkerStatus)
        who = self.node.name, self.node.incarnation, os.getpid(), version, self._report
        return ToldWorker(*who, held, self._kept, self._joined, capacity=status.capacity)

    async def _once(self, serial: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do the work of a serial once; a repeated call gets the same answer.

        The controller makes one call after the other, each under the next serial, and repeats it while it gets no answer:
        that is the same work, which is in progress or done.
        """
        if serial > self._serial:
            self._serial, self._answer = serial, asyncio.create_task(_after(self._answer if self._serial else None, work))
            self._answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return await asyncio.shield(self._answer)

    async def _deploy(self, block: LoadBlock) -> tuple[str, Deployed]:
        """Return the actor of a block that is about to load."""
        ids = [*block.ids, *filter(None, block.deltas)]
        name = "block-" + hashlib.blake2b(b"".join([*block.ids, b"/", *block.deltas]), digest_size=6).hexdigest()
        async with self._changing:
            one = self._deployed.get(name)
            if one is None:
                actor = BlockActor(name, self._worker, self.ref)
                ref = (await self.node.spawn(actor, name=name, owner=self.ref.address)).ref
                deltas = block.deltas or [b""] * len(block.ids)
                order = tuple(tuple(filter(None, pair)) for pair in zip(block.ids, deltas, strict=True))
                last = LastUse(UNUSED, self.node.clock.now())
                one = self._deployed[name] = Deployed(ref, frozenset(ids), last, order)
                self.monitor(ref)
            one.busy += 1
            return name, one


async def _after(former: asyncio.Future[Any] | None, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Do some work once the former is over: a head that died may have asked for that."""
    if former is not None:
        await asyncio.wait([former])
    return await work()
