"""The actor of one deployed block, on its worker's node.

Owns the block's life: it knows the holders and when the block is no longer of use, and has the worker load and unload it.
Nothing that a sweep waits for passes here, and no message is sent for each use: the counts are fetched when needed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...policies.cluster.block_life import BlockLife
from ...policies.control.loads import LoadBlock, NoCapacity, SourcesWanted
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.actor.ref import Ref
from ...runtime.base.errors import RemoteError
from ...transport.clock import Timer
from ..worker.messages import BlockLoaded
from .messages import BlockStatus, LastUse

LOAD_TIMEOUT = 600.0  # seconds
LoadAnswer = BlockLoaded | NoCapacity | SourcesWanted
ANSWER: Any = LoadAnswer


class BlockRefused(Exception):
    """The worker's refusal to load a block; its sentence."""


class BlockActor(Actor):
    """The actor of one block (see the module).

    worker: the worker that computes here. blocks: the actor that started this one, counts its use, and ends it when it is
    gone.
    """

    def __init__(self, name: str, worker: Ref, blocks: Ref) -> None:
        self._name = name
        self._worker = worker
        self._blocks = blocks
        self._life = BlockLife()
        self._components = self._nbytes = 0
        self._idle = 0.0  # seconds without use until the controller is notified; 0: never
        self._timer: Timer | None = None

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock) -> LoadAnswer:
        """Make the block resident for one more application. Raises BlockRefused; then nothing is counted."""
        self._life.begin(block.holder)
        try:
            loaded: LoadAnswer = await self._worker.load(block, timeout=LOAD_TIMEOUT, returns=ANSWER)
        except RemoteError as error:
            self._life.failed(block.holder)
            raise BlockRefused(error.text) from None
        except BaseException:
            self._life.failed(block.holder)
            raise
        if isinstance(loaded, NoCapacity | SourcesWanted):
            self._life.failed(block.holder)
            return loaded
        self._life.loaded(block.holder)
        self._components, self._nbytes = block.last - block.first, self._nbytes + loaded.new_bytes
        self._idle = block.idle or self._idle
        self._look_at(self.node.clock.now() + self._idle)
        return loaded

    @endpoint(concurrent=True)
    async def unload(self, holder: str, ids: list[bytes]) -> int:
        """Release an application's hold; return the bytes of the worker's pool that become free."""
        last = self._life.release(holder)
        freed: int = await self._worker.unload(holder, ids, self._name if last else "", returns=int)
        return freed

    @endpoint(urgent=True)
    async def ended(self) -> None:
        """Note that the last open plan that may have named it has ended."""
        if self._life.ended():
            self._blocks.gone.cast(self._name)

    @endpoint(concurrent=True)
    async def status(self) -> BlockStatus:
        last: LastUse = await self._blocks.last_use(self._name, returns=LastUse)
        unused = self.node.clock.now() - last.at
        holders = list(self._life.holders)
        return BlockStatus(self._name, self._life.stage, holders, self._components, self._nbytes, last.use, unused)

    def _look_at(self, time: float) -> None:
        """Check at ``time`` whether it has been unused for long enough; uses on the way cost nothing."""
        if self._idle and self._timer is None:
            self._timer = self.node.clock.call_at(time, partial(self.node.post, self.ref.address, self._look))

    async def _look(self) -> None:
        self._timer = None
        if not self._life.holders:
            return
        last: LastUse = await self._blocks.last_use(self._name, returns=LastUse)
        now = self.node.clock.now()
        if now >= last.at + self._idle:
            self._blocks.idle.cast(list(self._life.holders))
            self._look_at(now + self._idle)  # in case nothing comes of it
        else:
            self._look_at(last.at + self._idle)
