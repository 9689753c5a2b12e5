"""Block loading: reading component specs, loading the components, and rehearsing them on the device.

Specs that were read before are not read again. A failure of the rehearsal is the load's error. A block's actor may outlive
its unloading by a few plans; ``BlockEndings`` notifies it when the last plan that names the block has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...gpu.backend import Backend
from ...gpu.errors import CheckpointError
from ...gpu.model.config import ComponentSpec
from ...policies.cluster.application_life import model_of
from ...policies.control.loads import LoadBlock, NoCapacity, SourcesWanted
from ...policies.memory.packed_tensor import Shortage
from ...policies.memory.worker_memory import WorkerMemory
from ...policies.sweep.state import SweepState
from ...runtime.actor.ref import Ref
from .component_loader import ComponentLoader, ReadSpecs, refusal
from .component_sources import ComponentSources
from .messages import BlockLoaded, WorkerConfig

Rehearse = Callable[[LoadBlock, Sequence[ComponentSpec]], Awaitable[None]]

log = logging.getLogger(__name__)
KEPT = 256  # blocks; about 100 KB each


class KnownSpecs:
    """Cache of the specs of recently read blocks, by holder and first component.

    Also records which of them the device has already composed.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], tuple[LoadBlock, list[ComponentSpec]]] = OrderedDict()
        self._proven: set[tuple[str, int]] = set()

    def find(self, block: LoadBlock) -> list[ComponentSpec] | None:
        """Return the specs of an equal block, or None."""
        key = block.holder, block.first
        if key not in self._known or self._known[key][0] != block:
            return None
        self._known.move_to_end(key)
        return self._known[key][1]

    def keep(self, block: LoadBlock, specs: list[ComponentSpec]) -> None:
        key = block.holder, block.first
        self._known[key] = block, specs
        self._proven.discard(key)
        if len(self._known) > KEPT:
            oldest, _ = self._known.popitem(last=False)
            self._proven.discard(oldest)

    def prove(self, block: LoadBlock) -> None:
        """Record that the device can compose the block."""
        self._proven.add((block.holder, block.first))

    def proven(self, block: LoadBlock) -> bool:
        return (block.holder, block.first) in self._proven


class BlockLoader:
    """Loader of blocks, on top of a worker's component loader. ``read``: finds them in folders. ``rehearse``: see
    ``ComposedRuns``.
    """

    def __init__(
        self,
        config: WorkerConfig,
        backend: Backend,
        loader: ComponentLoader,
        sources: ComponentSources,
        rehearse: Rehearse,
        read: ReadSpecs,
        known: KnownSpecs,
    ) -> None:
        self._config = config
        self._loader = loader
        self._sources = sources
        self._rehearse = rehearse
        self._read = read
        self._kv_dtype = str(backend.dtype).removeprefix("torch.")
        self._specs = known

    async def load(self, block: LoadBlock, memory: WorkerMemory) -> BlockLoaded | NoCapacity | SourcesWanted:
        """Load all components; on failure, without capacity or without their files, none.

        ``memory`` is the worker's memory, which is only read here.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        source, sources = block.source, block.sources
        same = replace(block, source="", sources=None)  # the same block, wherever it is loaded from
        if (specs := self._specs.find(same)) is None:
            found = await self._find(block)
            if isinstance(found, SourcesWanted):
                return found
            specs = found
            self._specs.keep(same, specs)
        block = same
        if sources is None and (lacking := await self._sources.lacking(specs)):
            return SourcesWanted(lacking)
        try:
            if sources and not self._sources.keeps:
                source = source or sources[0]  # packed, as far as forms are equal
            answer = await self._loader.load(specs, block.holder, source, sources or (), borrows=block.borrows)
        except CheckpointError:
            if sources is None and (lacking := await self._sources.lacking(specs, failed=True)):
                return SourcesWanted(lacking)  # what its store had was damaged
            raise
        if isinstance(answer, Shortage):
            return refusal(answer, self._config, memory)
        if not self._specs.proven(block):
            try:
                await self._rehearse(block, specs)
            except BaseException:
                self._loader.release(block.holder, [spec.name for spec in specs])
                raise
            self._specs.prove(block)
        if answer.unfetched:
            model = model_of(block.holder)
            log.warning("not all of %s came from another worker (%s): the rest was read from disk", model, answer.unfetched)
        return BlockLoaded(answer.added, loop.time() - began, answer.fetched, answer.unfetched)

    async def _find(self, block: LoadBlock) -> list[ComponentSpec] | SourcesWanted:
        """Return the specs of a block from a folder of this machine, else by hash. Raises CheckpointError, OSError."""
        sizes = self._config.worker_memory.page_size, self._kv_dtype
        try:
            specs = await self._read(block, *sizes)
        except CheckpointError as fault:
            return await self._sources.specs(block, *sizes, fault)
        self._sources.know(specs)
        return specs


class BlockEndings:
    """Unloaded blocks that wait for open plans. ``state`` is the sweep machine; its plans end in order."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._waiting: list[tuple[int, Ref]] = []  # the last plan that may name a block, and the block's actor

    def await_plans(self, block: Ref) -> None:
        """Notify ``block`` when all plans that are open now have ended, since each of them may name it."""
        self._waiting.append((self._state.number, block))
        self.notify()

    def notify(self) -> None:
        """Notify blocks of the end of their last plan. Called whenever a plan may have ended."""
        oldest = self._state.number - self._state.open_plans
        while self._waiting and self._waiting[0][0] <= oldest:
            self._waiting.pop(0)[1].ended.cast()
