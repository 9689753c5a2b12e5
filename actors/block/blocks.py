"""The deployed blocks of a worker: starts an actor for each when it is loaded, counts its use, ends it when it is gone.

Supervises them: one that ends by a fault ends this actor, and with it the worker's process, since nobody would know any more
what is loaded. The worker tells of all blocks with one message, which costs work for those that are in use, and no message.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from ...policies.cluster.scaling import UNUSED, BlockPlace, PressedBlock, Queues, RouteQueue
from ...runtime.actor.actor import Actor, Crash
from ...runtime.actor.endpoint import endpoint
from ...runtime.actor.ref import Ref
from ...runtime.base.down import Down, abnormal
from ...runtime.base.errors import RemoteError
from ..worker.messages import BlockLoaded, LoadBlock, NoCapacity
from .actor import ANSWER, LOAD_TIMEOUT, BlockActor, BlockRefused
from .messages import BlockStatus, LastUse


@dataclass(slots=True)
class Deployed:
    """A block with an actor."""

    ref: Ref
    ids: frozenset[bytes]  # of components and deltas
    last: LastUse
    places: dict[str, BlockPlace] = field(default_factory=dict)  # by application that it was loaded for
    busy: int = 0  # loads under way


class Blocks(Actor):
    """See the module. ``controller``: its address."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._deployed: dict[str, Deployed] = {}  # by actor
        self._of: dict[str, dict[str, Deployed]] = {}  # application -> its blocks, by actor
        self._used: dict[str, Deployed] = {}  # those that somebody passed when last counted
        self._changing = asyncio.Lock()
        self._serial = 0  # of what the controller asked last

    async def on_start(self) -> None:
        self._worker = self.node.ref(f"{self.node.name}/worker")
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def on_stop(self) -> None:
        self._answer.cancel()

    async def on_down(self, down: Down) -> None:
        if abnormal(down.cause) and down.actor in self._deployed:
            raise Crash(f"block {down.actor} ended: {down.cause}")

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock, serial: int) -> BlockLoaded | NoCapacity:
        """Deploy a block for one more application. Raises BlockRefused with the worker's sentence."""
        return cast(BlockLoaded | NoCapacity, await self._once(serial, partial(self._load, block)))

    async def _load(self, block: LoadBlock) -> BlockLoaded | NoCapacity:
        name, one = await self._deploy(block)
        try:
            loaded: BlockLoaded | NoCapacity = await one.ref.load(block, timeout=LOAD_TIMEOUT, returns=ANSWER)
        except RemoteError as error:
            raise BlockRefused(error.text) from None
        else:
            if isinstance(loaded, BlockLoaded):
                one.places[block.holder] = BlockPlace(block.holder, block.first, block.last)
                self._of.setdefault(block.holder, {})[name] = one
            return loaded
        finally:
            one.busy -= 1
            if not one.places:
                await self.gone(name)

    @endpoint(concurrent=True)
    async def unload(self, holder: str, ids: list[bytes], serial: int) -> int:
        """An application needs these components no more; bytes of the worker's pool that become free."""
        return cast(int, await self._once(serial, partial(self._unload, holder, ids)))

    async def _unload(self, holder: str, ids: list[bytes]) -> int:
        rest, freed = dict.fromkeys(ids), 0
        for name, one in list(self._of.get(holder, {}).items()):
            if one.ids <= rest.keys():
                del one.places[holder], self._of[holder][name]
                mine = [id for id in ids if id in one.ids]
                for id in mine:
                    rest.pop(id, None)
                freed += await one.ref.unload(holder, mine, returns=int)
        if not self._of.get(holder):
            self._of.pop(holder, None)
        if rest:
            freed += await self._worker.unload(holder, list(rest), "", returns=int)
        return freed

    @endpoint(concurrent=True)
    async def gone(self, name: str) -> None:
        """A block is held by nobody, and no open plan names it: its actor ends, unless it is being loaded again."""
        async with self._changing:
            one = self._deployed.get(name)
            if one is not None and not one.busy and not one.places:
                del self._deployed[name]
                self._used.pop(name, None)
                await self.node.stop_actor(one.ref, drain=0.0)

    @endpoint
    async def report(self, queues: list[RouteQueue]) -> None:
        """worker: everybody who is here, at each of its heartbeats. The controller hears of blocks that are pressed."""
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
        """A block that was deployed for a burst was not used for a while."""
        self.node.ref(self._controller).idle.cast(self.node.name, self.node.incarnation, applications)

    @endpoint(concurrent=True)
    async def last_use(self, name: str) -> LastUse:
        return self._deployed[name].last

    @endpoint(concurrent=True)
    async def statuses(self, most: int) -> list[BlockStatus]:
        """Of so many blocks at most, those with the longest queues first, by their actors."""
        found = sorted(self._deployed.values(), key=lambda one: (-one.last.use.pressure, -one.last.at))[:most]
        asked = [one.ref.status(returns=BlockStatus) for one in found]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, BlockStatus)]

    async def _once(self, serial: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The controller asks one thing after the other, each under the next serial, and again while it hears nothing: that
        is the same work, which goes on or is over, and has the same answer."""
        if serial > self._serial:
            self._serial, self._answer = serial, asyncio.create_task(work())
            self._answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return await asyncio.shield(self._answer)

    async def _deploy(self, block: LoadBlock) -> tuple[str, Deployed]:
        """The actor of a block, which is about to load."""
        ids = [*block.ids, *filter(None, block.deltas)]
        name = "block-" + hashlib.blake2b(b"".join([*block.ids, b"/", *block.deltas]), digest_size=6).hexdigest()
        async with self._changing:
            one = self._deployed.get(name)
            if one is None:
                actor = BlockActor(name, self._worker, self.ref)
                ref = (await self.node.spawn(actor, name=name, owner=self.ref.address)).ref
                one = self._deployed[name] = Deployed(ref, frozenset(ids), LastUse(UNUSED, self.node.clock.now()))
                self.monitor(ref)
            one.busy += 1
            return name, one
