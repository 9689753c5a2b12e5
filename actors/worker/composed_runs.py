"""State of the device apart from plans: KV layouts, composed runs, attached deltas, and when each is dropped.

Each is set up once and kept until it is forgotten. Open this file when a plan names a run that the device does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from ...gpu.executor import Executor
from ...gpu.model.config import ComponentSpec
from ...policies.adaptive.guessing import is_guessing
from ...policies.control.loads import LoadBlock
from ...policies.model.chain import Chain, PageLayout
from ...policies.model.runs import LocalRoute, Run
from .device_thread import DeviceQueue


class ComposedRuns:
    """The runs that the device has composed, by number.

    ``do`` passes the device an operation that must succeed, in order.
    """

    def __init__(self, do: Callable[[Callable[[Executor], object]], None]) -> None:
        self._do = do
        self._layouts: set[PageLayout] = set()  # layouts that have arenas
        self._length = self._layers = 0  # size of the largest tables requested so far
        self._runs: dict[int, Run] = {}
        self._attached: dict[tuple[int, int], dict[int, bytes]] = {}  # (run, number of the deltas) -> delta ids by place

    def turn_to(self, do: Callable[[Callable[[Executor], object]], None]) -> None:
        """Serve the next life of the worker from now on."""
        self._do = do

    def prepare(self, chains: Sequence[Chain]) -> None:
        """Make sure that the device has arenas for these chains' pages and tables for their longest sequences."""
        counts = {chain.application: sum(c.kv is not None for c in chain.components) for chain in chains}
        beside = {chain.drafts_for: counts[chain.application] for chain in chains if is_guessing(chain)}
        lengths = [(one.max_length, counts[one.application] + beside.get(one.application, 0)) for one in chains]
        kept = [chain.hidden for chain in chains if chain.family]
        for layout in self._new_layouts([*kept, *[c.kv for chain in chains for c in chain.components]]):
            self._do(partial(_add_layout, layout=layout))
        if self._too_small(lengths):
            length, layers = self._length, self._layers
            self._do(lambda ex: deque(ex.grow(length, layers), maxlen=0))

    async def rehearse(self, device: DeviceQueue, block: LoadBlock, specs: Iterable[ComponentSpec]) -> None:
        """Prepare a loaded block and compose it as one run, before it is published.

        A failure here becomes the load's error.
        """
        for layout in self._new_layouts(spec.component.kv for spec in specs):
            try:
                await device.call(partial(_add_layout, layout=layout))
            except BaseException:
                self._layouts.discard(layout)
                raise
        former = self._length, self._layers
        if self._too_small([(block.length, block.layers)]):
            length, layers = self._length, self._layers
            try:
                await device.call_in_steps(lambda ex: ex.grow(length, layers))
            except BaseException:
                self._length, self._layers = former
                raise
        inside = {place: id for place, id in enumerate(block.deltas) if id}
        await device.call(lambda ex: ex.rehearse(block.ids, inside))

    def _new_layouts(self, layouts: Iterable[PageLayout | None]) -> list[PageLayout]:
        new = sorted({kv for kv in layouts if kv is not None} - self._layouts, key=lambda layout: layout.key)
        self._layouts.update(new)
        return new

    def _too_small(self, lengths: Iterable[tuple[int, int]]) -> bool:
        """Return whether tables of these lengths and layer counts exceed all requested before.

        The larger sizes are recorded.
        """
        former = self._length, self._layers
        for length, layers in lengths:
            self._length, self._layers = max(self._length, length), max(self._layers, layers)
        return former != (self._length, self._layers)

    def compose(self, number: int, run: Run) -> None:
        """Compose a run, once per number. It stays until one of its components is forgotten."""
        if number not in self._runs:
            self._runs[number] = run
            self._do(lambda ex: ex.compose(number, run.components, run.kv_layer))

    def attach(self, number: int, run: Run, local: LocalRoute) -> None:
        """Attach a route's deltas to a composed run, once."""
        inside = {d - run.depth: id for d, id in local.deltas if run.depth <= d < run.depth + len(run.components)}
        key = number, local.delta
        if inside and key not in self._attached:
            self._attached[key] = inside
            self._do(lambda ex: ex.attach(*key, inside))

    def forget(self, component: bytes, tensors: Sequence[bytes]) -> None:
        """Drop a component or delta that no holder needs, with its packed tensors and the runs that contain it."""
        self._detach([key for key, inside in self._attached.items() if component in inside.values()])
        self._drop([number for number, run in self._runs.items() if component in run.components])
        self._do(partial(_unload, component_id=component, tensors=tensors))

    def retain(self, runs: Container[int], deltas: Container[int]) -> None:
        """Drop all runs and deltas but these, the ones of planned routes. No plan will name the others again."""
        self._detach([key for key in self._attached if key[1] not in deltas])
        self._drop([number for number in self._runs if number not in runs])

    def _detach(self, keys: Iterable[tuple[int, int]]) -> None:
        for run, number in keys:
            del self._attached[run, number]
            self._do(partial(_detach, run=run, number=number))

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self._runs[number]
            self._attached = {key: inside for key, inside in self._attached.items() if key[0] != number}
            self._do(partial(_drop, run=number))


def _add_layout(executor: Executor, *, layout: PageLayout) -> None:
    executor.add_layout(layout)


def _drop(executor: Executor, *, run: int) -> None:
    executor.drop(run)


def _detach(executor: Executor, *, run: int, number: int) -> None:
    executor.detach(run, number)


def _unload(executor: Executor, *, component_id: bytes, tensors: Sequence[bytes]) -> None:
    executor.unload(component_id, tensors)
