"""What the device was told of besides plans: KV layouts, runs of components composed once, and what it may forget."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from blockwright.gpu.executor import Executor
from blockwright.policies.model.chain import Chain, KvLayout
from blockwright.policies.model.runs import LocalRoute, Run


class ComposedRuns:
    """Runs that the device has composed, by number. ``do`` gives it an operation that must succeed, in order."""

    def __init__(self, do: Callable[[Callable[[Executor], object]], None]) -> None:
        self._do = do
        self._runs: dict[int, Run] = {}
        self._attached: dict[tuple[int, int], dict[int, bytes]] = {}  # run, number of deltas -> delta ids by place

    def prepare(self, chains: Sequence[Chain]) -> None:
        """The device has arenas for the KV of these models, and tables for their longest sequences."""
        layouts = {c.kv for chain in chains for c in chain.components if c.kv is not None}
        for layout in sorted(layouts, key=lambda layout: layout.key):
            self._do(partial(_add_layout, layout=layout))
        length = max((chain.max_length for chain in chains), default=0)
        layers = max((sum(c.kv is not None for c in chain.components) for chain in chains), default=0)
        self._do(lambda ex: ex.grow(length, layers))

    def compose(self, number: int, run: Run) -> None:
        """Once: what was composed under this number stays until one of its components is forgotten."""
        if number not in self._runs:
            self._runs[number] = run
            self._do(lambda ex: ex.compose(number, run.components, run.kv_layer))

    def attach(self, number: int, run: Run, local: LocalRoute) -> None:
        """A route's deltas in a composed run. Once, as above."""
        inside = {d - run.depth: id for d, id in local.deltas if run.depth <= d < run.depth + len(run.components)}
        key = number, local.delta
        if inside and key not in self._attached:
            self._attached[key] = inside
            self._do(lambda ex: ex.attach(*key, inside))

    def forget(self, component: bytes, tensors: Sequence[bytes]) -> None:
        """Nobody holds a component or a delta: the device has no use for it, its packed tensors and what has it inside."""
        self._detach([key for key, inside in self._attached.items() if component in inside.values()])
        self._drop([number for number, run in self._runs.items() if component in run.components])
        self._do(partial(_unload, component_id=component, tensors=tensors))

    def retain(self, runs: Container[int], deltas: Container[int]) -> None:
        """Numbers of what planned routes have: no plan will name the others again."""
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


def _add_layout(executor: Executor, *, layout: KvLayout) -> None:
    executor.add_layout(layout)


def _drop(executor: Executor, *, run: int) -> None:
    executor.drop(run)


def _detach(executor: Executor, *, run: int, number: int) -> None:
    executor.detach(run, number)


def _unload(executor: Executor, *, component_id: bytes, tensors: Sequence[bytes]) -> None:
    executor.unload(component_id, tensors)
