"""Kernels that a worker's proofs launch, and so have compiled: all of blocks and heads, for every number of rows.

Launches are recorded instead of made, with what Triton compiles a kernel anew for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.jit import JITFunction

from blockwright.gpu.backend import Batch
from blockwright.gpu.cuda import platforms
from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.ops_triton import TritonOps
from blockwright.gpu.cuda.prove import ON_CARD, Prover
from blockwright.gpu.cuda.synchronous import SynchronousCard
from blockwright.gpu.row_backend import DTYPES, RowPacked
from blockwright.gpu.tables import Tables
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.claims import claim

from .compiled import Launches

DEMO = Path(__file__).parents[4] / "examples" / "demo-checkpoint"
TOKENS = 512


def opened(dtype: str) -> CudaBackend:
    streams = DeferredStreams(eager=True)
    ops: Any = TritonOps(DTYPES[dtype])
    return platforms._on_host(platforms.INTERPRETED, dtype, streams, streams.stream(), ops)


def components(backend: CudaBackend) -> list[RowPacked]:
    found = []
    for spec in Checkpoint.open(DEMO).specs(16, str(backend.dtype).removeprefix("torch.")):
        memory = {part.role: torch.zeros(part.nbytes, dtype=torch.uint8) for part in backend.parts(spec)}
        found.append(backend.assemble(spec, memory))
    return found  # type: ignore[return-value]


def serve(backend: CudaBackend, packed: Sequence[RowPacked]) -> None:
    """Compute sweeps of all sizes: prompts, decode of one row and of many, both at once; pages that leave and come."""
    tables = Tables(256, TOKENS, 8, 16)
    backend.reserve(tables, TOKENS, 256)
    layout = next(one.spec.component.kv for one in packed if one.spec.component.kv is not None)
    backend.add_arena(layout, torch.zeros(4096, dtype=torch.uint8))
    run, head = backend.compose(packed[:-1], 0), backend.compose(packed[-1:], 0)
    card = SynchronousCard(backend)
    width = packed[0].spec.component.width_out
    for places in (
        [(0, 0, 1)], [(0, 0, 40)], [(0, 0, TOKENS)], [(n, 300, 1) for n in range(40)], [(n, 9, 1) for n in range(256)],
        [(0, 0, 200), *((n, 511, 1) for n in range(1, 200))],
    ):  # fmt: skip
        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*places, strict=True))
        hidden_TD = torch.zeros(int(count_N.sum()), width, dtype=backend.dtype)
        card.forward(run, Batch(row_N, start_N, count_N, hidden_TD))
        card.logits(head, hidden_TD[: len(places)].contiguous())
    memory = torch.zeros(2, backend.slot_bytes(layout), dtype=torch.uint8)
    backend.export(layout, [1, 2], memory)
    backend.import_(layout, [3, 4], memory)


def recorded(monkeypatch: pytest.MonkeyPatch) -> Launches:
    launches = Launches()
    monkeypatch.setattr(JITFunction, "run", launches.runner())
    return launches


@claim("The kernels of blocks and heads are compiled by the proofs of a worker, before it serves", of="numerics")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_compiled_while_serving(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(dtype)
    packed = components(backend)
    proved = recorded(monkeypatch)
    for _ in Prover(lambda: CudaBackend(backend.platform, dtype), ON_CARD, TOKENS).prove(packed):  # type: ignore[arg-type,return-value]
        pass
    served = recorded(monkeypatch)
    serve(backend, packed)
    late = [(kernel.__name__, keywords) for kernel, keywords in served.found if (kernel, keywords) not in proved.found]
    assert len(served.found) > 12
    assert late == []
