"""Kernels that a worker launches before it serves, and so has compiled: all that serving launches, for every number of rows.

Launches are recorded instead of made, with what Triton compiles a kernel anew for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.jit import JITFunction

from blockwright.gpu.cuda import platforms
from blockwright.gpu.cuda.backend import CudaBackend
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.deltas import CudaDelta, delta_bytes
from blockwright.gpu.cuda.device import CudaDevice
from blockwright.gpu.cuda.ops_triton import TritonOps
from blockwright.gpu.cuda.prove import ON_CARD, Prover
from blockwright.gpu.cuda.results import CudaTicket
from blockwright.gpu.device import DeviceSizes
from blockwright.gpu.model.config import DeltaSpec, TensorRef, tensor_shapes
from blockwright.gpu.model.deltas import DeltaConfig, LoraTerm
from blockwright.gpu.row_backend import DTYPES, RowPacked
from blockwright.gpu.sweep_columns import SweepColumns
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.model.chain import HiddenLayout
from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.plan.sweep_plan import Edit, SetPages, SetSampling, SweepPlan, SweepResult
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


def changed(backend: CudaBackend, packed: Sequence[RowPacked], rank: int, roles: Sequence[str]) -> dict[int, CudaDelta]:
    """Low-rank terms of these roles, by the place of their component."""
    found = {}
    for place, one in enumerate(packed):
        shapes = {role: shape for role, shape in tensor_shapes(one.spec.config).items() if role in roles}
        terms = tuple(LoraTerm(role=role, rank=rank, scale=1.0) for role in shapes)
        tensors = {f"{role}.a": (rank, shape[1]) for role, shape in shapes.items()}
        tensors |= {f"{role}.b": (shape[0], rank) for role, shape in shapes.items()}
        refs = {name: TensorRef("", name, "F32", shape, 0, 0) for name, shape in tensors.items()}
        spec = replace(one.spec, delta=DeltaSpec(b"%016d" % rank, DeltaConfig(lora=terms), refs))
        if terms:
            memory = torch.zeros(delta_bytes(spec, backend.dtype), dtype=torch.uint8)
            packing = backend.pack_delta(spec, {name: torch.zeros(shape) for name, shape in tensors.items()}, memory)
            try:
                while True:
                    next(packing)
            except StopIteration as end:
                found[place] = end.value
    return found


OPTIONS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=3),
    SamplingParams(top_k=5, min_p=0.1, logprobs=0),
    SamplingParams(temperature=0.3, top_p=0.5, logprobs=20),
    SamplingParams(repetition_penalty=1.3, rules=TokenRules(allowed=list(range(200))), prompt_logprobs=3),
    SamplingParams(temperature=0.0, frequency_penalty=0.5, rules=TokenRules(bias=[(n, 0.5) for n in range(300)])),
]


def serve(backend: CudaBackend, packed: Sequence[RowPacked], deltas: Sequence[dict[int, CudaDelta]]) -> None:
    """Compute sweeps of all sizes: prompts, decode of one row and of many, both at once, drafts, tenants; pages move."""
    device = CudaDevice(backend, DeviceSizes(256, TOKENS, 8, 2 * TOKENS, 16, backend.chunk, backend.chunk))
    layout = next(one.spec.component.kv for one in packed if one.spec.component.kv is not None)
    width = packed[0].spec.component.width_out
    kept = HiddenLayout(width, layout.dtype, 16)
    for one in (layout, kept):
        backend.add_arena(one, torch.zeros(8 * backend.slot_bytes(one), dtype=torch.uint8))
        device._exchange.add_layout(one)
    run, head = backend.compose(packed[:-1], 0), backend.compose(packed[-1:], 0)
    for number, inside in enumerate(deltas, 1):
        backend.attach(run, number, inside)
        backend.attach(head, number, {})
    device.add_width(width)
    for places in (
        [(0, 0, 1)], [(0, 0, 40)], [(0, 0, TOKENS)], [(n, 300, 1) for n in range(40)], [(n, 9, 1) for n in range(256)],
        [(0, 0, 200), *((n, 510, 1) for n in range(1, 200))], [(0, 9, 4), (3, 5, 2)],
    ):  # fmt: skip
        row, start, count = (list(column) for column in zip(*places, strict=True))
        edits: list[Edit] = [SetPages(0, 0, 0, [0, 1, 2, 3]), *(SetSampling(n, 7, OPTIONS[n % len(OPTIONS)]) for n in row)]
        every = list(range(len(row)))
        verify = every if len(row) == 2 else []
        for numbers in ([], [1] * len(row), [n % (len(deltas) + 1) for n in range(1, len(row) + 1)]):
            plan = SweepPlan(1, edits, row=row, start=start, count=count, sample=every, score=[0], verify=verify)
            columns = SweepColumns(plan)
            device.begin(columns)
            at = columns.rows(every)
            device.arrive(width, at, bytes(at.tokens * width * backend.dtype.itemsize))
            device.take_hidden(kept, 0, at)
            device.step(run, width, at, numbers)
            device.step(run, width, columns.rows(every[::-1]), numbers[::-1])
            device.draft(head, width, columns.rows(every[::-1]), numbers[::-1], 0)
            device.sample(head, width, at, numbers)
            device.score(head, width, columns.rows([0]), numbers[:1])
            device.put_hidden(kept, 0, at)
            device.depart(width, at)
            device.end()
            device._sweep = None
    for arena in (layout.key, kept.key):
        memory = np.zeros(2 * device.pages.size(arena, 1), dtype=np.uint8)
        device.pages.export([(arena, [1, 2])], memory)
        backend.import_(device.pages.layout(arena), [3, 4], torch.from_numpy(memory).view(2, -1))
        device.pages.move(arena, [1, 2], [3, 4])


def recorded(monkeypatch: pytest.MonkeyPatch) -> Launches:
    launches = Launches()
    monkeypatch.setattr(JITFunction, "run", launches.runner())
    return launches


@claim("Every kernel that serves an application is compiled before it is served, on a card", of="numerics")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_compiled_while_serving(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(dtype)
    packed = components(backend)
    roles = ["q", "k", "v", "o", "gate", "up", "down"]
    deltas = [changed(backend, packed, 4, ["q", "v"]), changed(backend, packed, 40, roles)]
    monkeypatch.setattr(CudaTicket, "_collect", lambda _: SweepResult(1))  # nothing is computed
    before = recorded(monkeypatch)
    prover = Prover(lambda: CudaBackend(backend.platform, dtype), ON_CARD, TOKENS)
    for inside in ({}, *deltas):
        for _ in prover.prove(packed, [inside.get(place) for place in range(len(packed))]):
            pass
    assert (prover.outcome.late, prover.outcome.unproved) == ("", "")
    served = recorded(monkeypatch)
    serve(backend, packed, deltas)
    late = [(kernel.__name__, keywords) for kernel, keywords in served.found if (kernel, keywords) not in before.found]
    assert len(served.found) > 40
    assert late == []
