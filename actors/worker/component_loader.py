"""Components become resident one by one: the sweep machine says where each goes, the device thread puts it there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from blockwright.actors.worker.device_thread import Device
from blockwright.actors.worker.messages import LoadBlock
from blockwright.gpu.backend import Backend
from blockwright.gpu.executor import Executor
from blockwright.gpu.model.config import ComponentSpec
from blockwright.policies.sweep.events import (
    ComponentFailed,
    ComponentPlaced,
    ComponentRefused,
    ComponentReleased,
    ComponentWanted,
    Event,
)
from blockwright.zoo.source import open_source

Outcome = asyncio.Future[None] | ComponentRefused | None  # what the device does; no room; resident for somebody else
ReadSpecs = Callable[[LoadBlock, int, str], Awaitable[list[ComponentSpec]]]  # block, page size, type of KV


async def read_specs(block: LoadBlock, page_size: int, kv_dtype: str) -> list[ComponentSpec]:
    """The components of a block, from their checkpoint's files. Raises CheckpointError, OSError."""
    checkpoint = await asyncio.to_thread(open_source, block.checkpoint)
    return checkpoint.specs_with_ids(page_size, kv_dtype, block.ids, block.first)


class ComponentLoader:
    """What waits for its place, by component and holder. ``apply`` gives an event to the sweep machine."""

    def __init__(self, device: Device, backend: Backend, apply: Callable[[Event], None], worker: str, memory: int) -> None:
        self._device, self._backend, self._apply = device, backend, apply
        self._worker, self._memory = worker, memory  # for the sentence that says what is missing
        self._specs: dict[bytes, ComponentSpec] = {}
        self._waiting: dict[tuple[bytes, str], asyncio.Future[Outcome]] = {}

    async def load(self, spec: ComponentSpec, holder: str) -> int:
        """Bytes that were added: 0 where the component was there. Raises MemoryError when there is no room."""
        component, needed = spec.component.id, self._backend.packed_bytes(spec)
        answer = self._waiting[component, holder] = asyncio.get_running_loop().create_future()
        self._specs[component] = spec
        self._apply(ComponentWanted(component, holder, needed))
        try:
            outcome = await answer
            if isinstance(outcome, asyncio.Future):
                await asyncio.shield(outcome)
        except asyncio.CancelledError:
            self.release(holder, [component])  # behind the loading, which goes on
            raise
        except Exception:
            self._apply(ComponentFailed(component, holder))
            raise
        finally:
            del self._waiting[component, holder]
            if not any(other == component for other, _ in self._waiting):
                self._specs.pop(component, None)
        if isinstance(outcome, ComponentRefused):
            raise MemoryError(
                f"component {spec.component.kind} of {holder} needs {needed} bytes and worker {self._worker} has "
                f"{outcome.free} of {self._memory} left; give workers more memory (--set memory=...)"
            )
        return 0 if outcome is None else needed

    def release(self, holder: str, components: Iterable[bytes]) -> None:
        """``holder`` needs these no more."""
        for component in components:
            self._apply(ComponentReleased(component, holder))

    def placed(self, effect: ComponentPlaced | ComponentRefused) -> None:
        """A component has its place, mapped by the plan that the device was just given; or there is none."""
        outcome: Outcome = None
        if isinstance(effect, ComponentRefused):
            outcome = effect
        elif effect.fresh:
            outcome = self._device.call(partial(_load, spec=self._specs.pop(effect.component), offset=effect.offset))
        answer = self._waiting.get((effect.component, effect.holder))
        if answer is not None and not answer.done():
            answer.set_result(outcome)


def _load(executor: Executor, *, spec: ComponentSpec, offset: int) -> None:
    executor.load(spec, offset)
