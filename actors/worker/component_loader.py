"""What is resident comes one by one: the sweep machine says where its tensors go, the device packs them there, step by step.

A step is short and sweeps come before the next, so that running requests wait for one at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from blockwright.actors.worker.device_thread import Device
from blockwright.actors.worker.messages import LoadBlock
from blockwright.gpu.backend import Backend
from blockwright.gpu.executor import Executor
from blockwright.gpu.model.config import ComponentSpec
from blockwright.policies.memory.packed_tensor import PackedTensor
from blockwright.policies.sweep.events import (
    ComponentPlaced,
    ComponentRefused,
    ComponentReleased,
    ComponentWanted,
    Event,
)
from blockwright.zoo.source import open_source

Placed = tuple[ComponentPlaced, asyncio.Future[None]]  # where, and what the device does about it
ReadSpecs = Callable[[LoadBlock, int, str], Awaitable[list[ComponentSpec]]]  # block, page size, type of KV


async def read_specs(block: LoadBlock, page_size: int, kv_dtype: str) -> list[ComponentSpec]:
    """The components of a block and their deltas, from their checkpoint's files. Raises CheckpointError, OSError."""
    checkpoint = await asyncio.to_thread(open_source, block.checkpoint, block.base)
    specs = checkpoint.specs_with_ids(page_size, kv_dtype, block.ids, block.first, block.hashes, block.deltas)
    return [needed for spec in specs for needed in spec.loads()]


class ComponentLoader:
    """What waits for its place, by component and holder. ``apply`` gives an event to the sweep machine."""

    def __init__(self, device: Device, backend: Backend, apply: Callable[[Event], None], worker: str, memory: int) -> None:
        self._device, self._backend, self._apply = device, backend, apply
        self._worker, self._memory = worker, memory  # for the sentence that says what is missing
        self._specs: dict[bytes, ComponentSpec] = {}
        self._waiting: dict[tuple[bytes, str], asyncio.Future[Placed | ComponentRefused]] = {}
        self._loads: dict[bytes, asyncio.Future[None]] = {}  # under way, or done and not forgotten

    async def load(self, spec: ComponentSpec, holder: str) -> int:
        """Bytes that were added: 0 where all its tensors were there. Raises MemoryError when there is no room."""
        component = spec.name
        tensors = [PackedTensor(part.id, part.nbytes) for part in self._backend.parts(spec)]
        answer = self._waiting[component, holder] = asyncio.get_running_loop().create_future()
        self._specs[component] = spec
        self._apply(ComponentWanted(component, holder, tensors))
        try:
            outcome = await answer
            if isinstance(outcome, tuple):
                await asyncio.shield(outcome[1])
        except BaseException:
            self.release(holder, [component])
            raise
        finally:
            del self._waiting[component, holder]
            if not any(other == component for other, _ in self._waiting):
                self._specs.pop(component, None)
        if isinstance(outcome, ComponentRefused):
            raise MemoryError(
                f"component {spec.component.kind} of {holder} needs {outcome.nbytes} bytes and worker {self._worker} has "
                f"{outcome.free} of {self._memory} left; give workers more memory (--set memory=...)"
            )
        return sum(tensor.nbytes for tensor, place in zip(tensors, outcome[0].places, strict=True) if place.fresh)

    def release(self, holder: str, components: Iterable[bytes]) -> None:
        """``holder`` needs these no more."""
        for component in components:
            self._apply(ComponentReleased(component, holder))

    def placed(self, effect: ComponentPlaced | ComponentRefused) -> None:
        """A component has its place, mapped by a plan that the device was given; or there is none."""
        outcome: Placed | ComponentRefused
        if isinstance(effect, ComponentPlaced):
            outcome = effect, self._loads.get(effect.component) or self._begin(effect)
        else:
            outcome = effect
        answer = self._waiting.get((effect.component, effect.holder))
        if answer is not None and not answer.done():
            answer.set_result(outcome)

    def forget(self, component: bytes) -> None:
        """Nobody needs a component: its loading, if it goes on, ends before the next step."""
        load = self._loads.pop(component, None)
        if load is not None:
            load.cancel()

    def _begin(self, effect: ComponentPlaced) -> asyncio.Future[None]:
        component, offsets = effect.component, [place.offset for place in effect.places]
        load = self._device.call_in_steps(partial(_load, spec=self._specs[component], offsets=offsets))

        def ended(load: asyncio.Future[None]) -> None:
            if not load.cancelled() and load.exception() is not None and self._loads.get(component) is load:
                del self._loads[component]  # whoever needs it next tries again

        self._loads[component] = load
        load.add_done_callback(ended)
        return load


def _load(executor: Executor, *, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
    return executor.load(spec, offsets)
