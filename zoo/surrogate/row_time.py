"""The time that blocks take for one row, on the back end that serves.

Blocks take turns, so that none finds the caches as it left them itself. Legend: D hidden width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...gpu.backend import Batch, HostBackend
from ...gpu.model.config import ComponentConfig, ComponentSpec, attention_of
from ...gpu.tables import Tables
from ...gpu.weights.checkpoint import component_of
from ...policies.model.chain import KvLayout
from ..family.network import Weights

POSITION = 127  # of the row: the tokens that it has behind it
PAGE = 16  # tokens
SECONDS = 1.0  # of measuring each block
LEAST, MOST = 9, 400  # calls of each block
RawBlock = Sequence[tuple[ComponentConfig, Weights]]


@dataclass(slots=True)
class _Memory:
    """Memory that the back end's pointers lead to."""

    held: list[torch.Tensor] = field(default_factory=list)

    def take(self, nbytes: int, alignment: int) -> torch.Tensor:
        raw = torch.zeros(nbytes + alignment, dtype=torch.uint8)
        self.held.append(raw)
        skip = -raw.data_ptr() % alignment
        return raw[skip : skip + nbytes]


def row_seconds(backend: HostBackend, blocks: Sequence[RawBlock]) -> list[float]:
    """Return the median seconds of one row for each block. The back end must not be in use for anything else."""
    memory = _Memory()
    specs = [[_spec(backend, config) for config, _ in block] for block in blocks]
    layers = max(sum(one.component.kv is not None for one in block) for block in specs)
    tables = Tables(1, POSITION + 1, max(1, layers), PAGE)
    tables.slots.reshape(-1)[:] = range(tables.slots.size)
    backend.reserve(tables, 1, 1)
    for layout in dict.fromkeys(one.component.kv for block in specs for one in block):
        if layout is not None:
            backend.add_arena(layout, memory.take(tables.slots.size * backend.slot_bytes(layout), backend.alignment))
    runs = []
    for block, mine in zip(blocks, specs, strict=True):
        packed = [_packed(backend, memory, spec, raw) for spec, (_, raw) in zip(mine, block, strict=True)]
        runs.append(backend.compose(packed, 0))
    width = specs[0][0].component.width_out
    generator = torch.Generator().manual_seed(0)
    start_D = torch.randn(1, width, generator=generator).to(backend.dtype)
    return _measured(backend, runs, start_D)


def _spec(backend: HostBackend, config: ComponentConfig) -> ComponentSpec:
    attention = attention_of(config)
    dtype = str(backend.dtype).removeprefix("torch.")
    kv = KvLayout(attention.kv_heads, attention.head_dim, dtype, PAGE) if attention is not None else None
    return ComponentSpec(component_of(config, b"", 0, kv), config)


def _packed(backend: HostBackend, memory: _Memory, spec: ComponentSpec, raw: Weights) -> Any:
    places = {}
    for part in backend.parts(spec):
        places[part.role] = memory.take(part.nbytes, backend.alignment)
        backend.pack(part, raw[part.role], places[part.role])
    return backend.assemble(spec, places)


def _measured(backend: HostBackend, runs: Sequence[Any], start_D: torch.Tensor) -> list[float]:
    times: list[list[float]] = [[] for _ in runs]
    row_N, start_N, count_N = (np.array([value], dtype=np.int32) for value in (0, POSITION, 1))
    calls = -1
    while calls < MOST and (calls < LEAST or sum(map(sum, times)) < SECONDS * len(runs)):
        for run, found in zip(runs, times, strict=True):
            batch = Batch(row_N, start_N, count_N, start_D.clone())
            began = time.perf_counter()
            backend.forward(run, batch)
            if calls >= 0:  # the first call of each is not counted
                found.append(time.perf_counter() - began)
        calls += 1
    backend.settle()
    return [statistics.median(found) for found in times]
