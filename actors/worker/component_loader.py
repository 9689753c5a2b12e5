"""Component loader: makes components resident in short steps between sweeps.

The sweep machine decides where each packed tensor goes; the device packs it there. Steps are short and sweeps run between
them, so running requests wait for one step at most. A load may name another worker as its source: what that worker has in
memory is fetched from there (``parameters.py``), and the device reads the rest from files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...gpu.backend import Backend
from ...gpu.executor import Executor
from ...gpu.model.config import ComponentSpec
from ...gpu.weights.loader import TensorChanged
from ...policies.binary_size import binary_size
from ...policies.cluster.assignment import REMEDY
from ...policies.control.loads import LoadBlock, NoCapacity
from ...policies.memory.packed_tensor import PackedTensor, Shortage, WantedComponent
from ...policies.memory.worker_memory import WorkerMemory
from ...policies.sweep.events import (
    ComponentsPlaced,
    ComponentsRefused,
    ComponentsReleased,
    ComponentsWanted,
    Event,
)
from ...zoo.by_hash import is_wanted, wanted_tensors
from .component_sources import ComponentSources
from .device_thread import DeviceQueue
from .messages import WorkerConfig
from .parameters import Fetch, ParameterCarrier

ReadSpecs = Callable[[LoadBlock, int, str], Awaitable[list[ComponentSpec]]]  # block, page size, data type of KV


def refusal(shortage: Shortage, config: WorkerConfig, memory: WorkerMemory) -> NoCapacity:
    """Return the answer to the party that asked for the load."""
    owned = {name: owned for name, (owned, _) in memory.residence.bytes_by_holder().items()}
    message = (
        f"it needs {binary_size(shortage.need)} for parameters on worker {config.name}, but other parameters, running "
        f"sequences and the memory kept for KV leave too little of its {binary_size(config.worker_memory.memory)}: "
        f"{binary_size(shortage.lacking)} are missing; {REMEDY}"
    )
    return NoCapacity(message, shortage.lacking, shortage.never, owned)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The bytes that a load has added, how many of them came from another worker, and why not all did."""

    added: int
    fetched: int = 0
    unfetched: str = ""


@dataclass(slots=True)
class Loading:
    """A load that waits for its places, or for the device."""

    holder: str
    source: str  # a worker, or ""
    sources: Sequence[str]  # workers to fetch raw tensors from
    specs: dict[bytes, ComponentSpec]
    placed: asyncio.Future[list[asyncio.Future[None]] | Shortage]
    added: int = 0  # bytes
    void: bool = False  # some of it was released meanwhile
    fetch: Fetch | None = None

    @property
    def result(self) -> LoadResult:
        if self.fetch is None:
            return LoadResult(self.added)
        return LoadResult(self.added, self.fetch.plan.nbytes, self.fetch.lacking)


class ComponentLoader:
    """Owner of the loads under way. ``apply`` passes an event to the sweep machine.

    claims: the components and deltas that a former life of the worker has left in its memory, by holder.
    """

    def __init__(
        self,
        device: DeviceQueue,
        backend: Backend,
        apply: Callable[[Event], None],
        parameters: ParameterCarrier,
        sources: ComponentSources,
        claims: Mapping[str, Iterable[bytes]] | None = None,
    ) -> None:
        self._device = device
        self._backend = backend
        self._apply = apply
        self._parameters = parameters
        self._sources = sources
        self._number = 0  # the last load's number
        self.loaded_bytes = 0  # of packed tensors, so far
        self._waiting: dict[int, Loading] = {}
        self._loads: dict[bytes, asyncio.Future[None]] = {}  # by component: under way, or done and not forgotten
        # Of these, by holder, what no load or release has named since.
        self.unclaimed = {holder: set(ids) for holder, ids in (claims or {}).items()}
        for component in {id for ids in self.unclaimed.values() for id in ids}:
            self._loads[component] = asyncio.get_running_loop().create_future()
            self._loads[component].set_result(None)

    @property
    def loading(self) -> bool:
        """True if a component is not whole."""
        return any(not load.done() or load.cancelled() or load.exception() for load in self._loads.values())

    def stop(self) -> None:
        """Cancel all loads. The worker ends, and its device with it."""
        for load in self._loads.values():
            load.cancel()

    async def load(
        self,
        specs: Sequence[ComponentSpec],
        holder: str,
        source: str = "",
        sources: Sequence[str] = (),
        *,
        borrows: bool = False,
    ) -> LoadResult | Shortage:
        """Load all of these components, or none. ``source`` is a worker to fetch them from, as far as it has them.

        ``sources`` are workers that give raw tensors which are not here. borrows: as in ``LoadBlock``.

        Raises ValueError if one of them is already being loaded for this holder: the end of either load would release what
        both need.
        """
        mine = {spec.name: spec for spec in specs}
        self._claim(holder, mine)
        if any(other.holder == holder and not mine.keys().isdisjoint(other.specs) for other in self._waiting.values()):
            raise ValueError(f"components of {holder} are being loaded already; wait for that")
        self._number = number = self._number + 1
        loading = Loading(holder, source, sources, mine, asyncio.get_running_loop().create_future())
        self._waiting[number] = loading
        wanted = [
            WantedComponent(id, [PackedTensor(part.id, part.nbytes) for part in self._backend.parts(spec)])
            for id, spec in mine.items()
        ]
        self._apply(ComponentsWanted(number, holder, wanted, borrows))
        try:
            outcome = await loading.placed
            if isinstance(outcome, Shortage):
                return outcome
            await asyncio.gather(*map(asyncio.shield, outcome))
        except BaseException:
            self.release(holder, list(mine))
            if loading.void:
                raise RuntimeError(f"what {holder} loads was released meanwhile") from None
            raise
        finally:
            del self._waiting[number]
        self.loaded_bytes += loading.added
        return loading.result

    def release(self, holder: str, components: Sequence[bytes]) -> None:
        """Release the claim of ``holder`` on these components."""
        self._claim(holder, components)
        self._apply(ComponentsReleased(list(components), holder))

    def _claim(self, holder: str, components: Iterable[bytes]) -> None:
        if (left := self.unclaimed.get(holder)) is not None:
            left.difference_update(components)
            if not left:
                del self.unclaimed[holder]

    def placed(self, effect: ComponentsPlaced) -> None:
        """Begin to load components. A plan, already given to the device, has mapped their places."""
        loading = self._waiting.get(effect.load)
        if loading is None or loading.placed.done():
            return  # the caller is gone, and its release is on the way
        new = [(id, places) for id, places in zip(effect.components, effect.places, strict=True) if id not in self._loads]
        wanted = []
        for id, places in new:
            parts = zip(self._backend.parts(loading.specs[id]), places, strict=True)
            fresh = [(PackedTensor(part.id, part.nbytes), place.offset) for part, place in parts if place.fresh]
            loading.added += sum(tensor.nbytes for tensor, _ in fresh)
            wanted.append((id, fresh if loading.specs[id].delta is None else []))
        if loading.source and loading.added:
            loading.fetch = self._parameters.fetch(loading.source, wanted)
        away = [loading.specs[id] for id, _ in new if is_wanted(loading.specs[id])]
        for spec in away:
            self._sources.expect(spec)
        for id, places in new:
            self._begin(loading, loading.specs[id], [place.offset for place in places])
        loads = [self._loads[id] for id in effect.components]
        loading.placed.set_result(loads)

    def refused(self, effect: ComponentsRefused) -> None:
        """End a load for which there is no capacity."""
        loading = self._waiting.get(effect.load)
        if loading is not None and not loading.placed.done():
            loading.placed.set_result(effect.shortage)

    def forget(self, component: bytes) -> None:
        """Cancel the loading of a component that no holder needs any more.

        A load that is under way ends before its next step; no caller waits for it.
        """
        load = self._loads.pop(component, None)
        if load is not None:
            load.cancel()
        self._parameters.drop(component)
        for loading in (one for one in self._waiting.values() if component in one.specs):
            loading.void = True
            loading.placed.cancel()

    def _begin(self, loading: Loading, spec: ComponentSpec, offsets: Sequence[int]) -> None:
        load: asyncio.Future[None]
        ready = loading.fetch.ready[spec.name] if loading.fetch is not None else None
        if is_wanted(spec):
            load = asyncio.create_task(self._bring(ready, spec, offsets, loading))
            load.add_done_callback(lambda _: self._sources.release(spec))
        elif ready is None:
            load = self._device.call_in_steps(partial(_load, spec=spec, offsets=offsets))
        else:
            load = asyncio.create_task(self._complete(ready, partial(_load, spec=spec, offsets=offsets)))

        def ended(load: asyncio.Future[None]) -> None:
            if not load.cancelled() and load.exception() is not None and self._loads.get(spec.name) is load:
                del self._loads[spec.name]  # the next load that needs it tries again

        self._loads[spec.name] = load
        load.add_done_callback(ended)

    async def _complete(self, ready: asyncio.Future[None], operation: Callable[[Executor], Iterator[None]]) -> None:
        """Wait for the fetch to settle, then have the device read what is still missing.

        Its steps follow the writes of the fetched tensors.
        """
        await ready
        await self._device.call_in_steps(operation)

    async def _bring(
        self, ready: asyncio.Future[None] | None, spec: ComponentSpec, offsets: Sequence[int], loading: Loading
    ) -> None:
        """Bring raw tensors here that are still missing when a fetch has settled, then have the device read them.

        Workers that have none of them raw, and were not fetched from yet, are asked for packed ones. A tensor of the store
        that differs from its hash comes anew from elsewhere.
        """
        sources, asked = loading.sources, loading.fetch.source if loading.fetch is not None else ""
        if ready is not None:
            await ready
        while True:
            found = await self._sources.here(spec, await self._lacking(spec), sources)
            await self._fetch_packed(found, offsets, [source for source in sources if source != asked])
            found = await self._sources.here(found, await self._lacking(found), (), last=True)
            try:
                return await self._device.call_in_steps(partial(_load, spec=found, offsets=offsets))
            except TensorChanged as changed:
                if not self._sources.distrust(found, changed.ref):
                    raise

    async def _lacking(self, spec: ComponentSpec) -> list[str]:
        """Return the roles of wanted tensors that are not packed here, once what was fetched before is written."""
        found = list[str]()

        def look(executor: Executor) -> Iterator[None]:
            found.extend(role for role in executor.parameters.lacking(spec) if role in wanted_tensors(spec))
            yield

        await self._device.call_in_steps(look)
        return found

    async def _fetch_packed(self, spec: ComponentSpec, offsets: Sequence[int], sources: Sequence[str]) -> None:
        """Fetch packed what workers have not got raw."""
        for source in sources if spec.delta is None else ():
            if not (lacking := await self._lacking(spec)):
                return
            parts = zip(self._backend.parts(spec), offsets, strict=True)
            wanted = [(PackedTensor(part.id, part.nbytes), offset) for part, offset in parts if part.role in lacking]
            fetch = self._parameters.fetch(source, [(spec.name, wanted)])
            await fetch.ready[spec.name]


def _load(executor: Executor, *, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
    return executor.load(spec, offsets)
