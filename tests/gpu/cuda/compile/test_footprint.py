"""Footprints of workers on a card, foretold from shapes: not less than the memory that their devices then hold.

Kernels are not launched: the sizes are those of the card's tiles.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy_models import FAMILIES, drawn, write
from triton.runtime.jit import JITFunction

from blockwright.gpu.cuda import platforms
from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.footprint import COPIES, WorkerShape, footprint
from blockwright.gpu.cuda.ops_triton import TritonOps
from blockwright.gpu.device import DeviceSizes
from blockwright.gpu.row_backend import DTYPES
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.claims import claim

from .compiled import Launches


def opened(dtype: str) -> CudaBackend:
    streams = DeferredStreams(eager=True)
    ops: Any = TritonOps(DTYPES[dtype])
    return platforms._on_host(platforms.INTERPRETED, dtype, streams, streams.stream(), ops)


@claim("The memory of a card that a worker takes beside its pool is foretold from its shapes", of="numerics")
@pytest.mark.parametrize("number", range(len(FAMILIES)))
def test_no_device_has_more_than_was_foretold(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JITFunction, "run", Launches().runner())
    dtype = ("float32", "bfloat16")[number % 2]
    model = drawn(number)
    checkpoint = Checkpoint.open(write(replace(model, config={**model.config, "num_hidden_layers": 2}), tmp_path))
    backend, shape = opened(dtype), WorkerShape(rows=80, tokens=700, length=900, page=16, dtype=dtype)
    sizes = DeviceSizes(shape.rows, shape.length, checkpoint.config.layers, shape.tokens, shape.page, 0, backend.chunk)
    device = CudaDevice(backend, sizes)
    packed = []
    for spec in checkpoint.specs(shape.page, dtype):
        memory = {part.role: torch.zeros(part.nbytes, dtype=torch.uint8) for part in backend.parts(spec)}
        packed.append(backend.assemble(spec, memory))
        if (layout := spec.component.kv) is not None:
            backend.add_arena(layout, torch.zeros(4096, dtype=torch.uint8))
        device.add_width(spec.component.width_in)
    runs = backend.compose(packed[:-1], 0), backend.compose(packed[-1:], 0)
    held, foretold = device.held(), footprint([checkpoint.config], shape)
    assert len(runs) == 2
    assert held["tables"] == foretold.tables
    assert held["rotary"] <= foretold.rotary
    assert held["scratch"] <= foretold.scratch
    assert foretold.scratch <= 3 * held["scratch"] + COPIES, "sums of deltas and of parallel components are within it"
