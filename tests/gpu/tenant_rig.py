"""A rig whose rows belong to tenants: the base, or adapters over it, all in the same sweeps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from blockwright.gpu.backend import Backend
from blockwright.gpu.weights.adapter import open_adapter
from blockwright.policies.plan.sweep_plan import Edit, SweepPlan

from .rig import Rig, load, placing


class TenantRig(Rig):
    """Adapter i is number i + 1; ``tenant`` says whose each table row is (absent: the base's).

    Adapters with saved modules have components of their own: give one alone, and it is the chain of the rig.
    """

    def __init__(
        self, backend: Backend, path: Path, adapters: Sequence[Path], cuts: Sequence[int] = (), rows: int = 8
    ) -> None:
        self.tenant: dict[int, int] = {}
        self._adapters, self._path = adapters, path
        super().__init__(backend, path, cuts=cuts, rows=rows)
        bounds = [0, *cuts, len(self.specs)]
        for number, specs in enumerate(self._variants, 1):
            for run, (first, last) in enumerate(itertools.pairwise(bounds)):
                inside = {i: s.delta.id for i, s in enumerate(specs[first:last]) if s.delta is not None}
                self.executor.attach(run, number, inside)

    def _load(self, backend: Backend) -> None:
        kv_dtype = str(backend.dtype).removeprefix("torch.")
        variants = [open_adapter(folder, self.checkpoint) for folder in self._adapters]
        self._variants = [variant.specs(self.page_size, kv_dtype) for variant in variants]
        if len(self._variants) == 1:
            self.specs = self._variants[0]
        changed = {s.name: s for specs in self._variants for s in specs if s.delta is not None}
        needed = [part for spec in self.specs for part in spec.loads()[:1]] + list(changed.values())
        self.placing = placing(backend, needed)
        self.commit("parameters", self.placing.end)
        for spec in needed:
            load(self.executor, spec, self.placing)

    def plan(
        self, batch: Sequence[tuple[int, int, int]], sample: Sequence[int] = (), edits: Sequence[Edit] = ()
    ) -> SweepPlan:
        plan = super().plan(batch, sample, edits)
        numbers = [self.tenant.get(row, 0) for row in plan.row]
        for step in plan.steps:
            step.delta = numbers if any(numbers) else []
        return plan

    def together(self, prompts: dict[int, list[int]], *, count: int, chunk: int, length: int) -> dict[int, list[int]]:
        """So many greedy tokens after each row's, all rows in every batch, at most ``chunk`` positions of each."""
        done: dict[int, list[int]] = {row: [] for row in prompts}
        start = dict.fromkeys(prompts, 0)
        edits = [edit for row in prompts for edit in self.admit(row, prompts[row], length=length)]
        while any(len(found) < count for found in done.values()):
            known = {row: len(prompts[row]) + len(done[row]) for row in prompts}
            batch = [(row, start[row], min(chunk, known[row] - start[row])) for row in prompts]
            sample = [i for i, (row, first, n) in enumerate(batch) if first + n == known[row]]
            result, edits = self.run(batch, sample, edits), []
            for i, token in zip(sample, result.tokens, strict=True):
                done[batch[i][0]].append(token)
            for row, first, n in batch:
                start[row] = first + n
        return {row: found[:count] for row, found in done.items()}
