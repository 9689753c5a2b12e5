"""Timing of kernel sweeps in the checkout of the interpreter that runs it; the child of ``kernels.py``.

    python benchmarks/kernels_step.py THREADS SECONDS SIZE/DTYPE

Prints a line for each shape: its case, the shortest and the median time of a sweep in milliseconds. Only parts of the
package that older checkouts also have are used. Weights and tokens are random, from fixed seeds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from models import DTYPES, SIZES, Size

from blockwright.gpu.backend import Batch
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.model.config import (
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    NormConfig,
    RopeConfig,
)
from blockwright.gpu.tables import Tables
from blockwright.policies.model.chain import Component, Kind, KvLayout

ROWS = 32
LENGTH = 320
TOKENS = 288
PAGE = 16
HEAD_DIM = 64
CACHED = 191  # tokens that a decoding row has behind it
MOST_SWEEPS = 300
Step = Sequence[tuple[int, int, int]]  # (row, start, count)
STEPS: dict[str, Step] = {
    "decode1": [(0, CACHED, 1)],
    "decode8": [(row, CACHED, 1) for row in range(8)],
    "decode32": [(row, CACHED, 1) for row in range(ROWS)],
    "prefill128": [(0, 0, 128)],
    "prefill256": [(0, 0, 256)],
    "mixed": [*((row, CACHED, 1) for row in range(ROWS - 1)), (ROWS - 1, 0, 128)],
}


def parts(size: Size) -> list[tuple[Kind, ComponentConfig, dict[str, tuple[int, ...]]]]:
    """Each component of a Llama with the shapes of its tensors."""
    norm = NormConfig(eps=1e-5)
    wide = size.heads * HEAD_DIM
    narrow = size.kv_heads * HEAD_DIM
    attention = AttentionConfig(
        hidden=size.hidden, heads=size.heads, kv_heads=size.kv_heads, head_dim=HEAD_DIM, norm=norm,
        rope=RopeConfig(theta=10000.0), scale=HEAD_DIM**-0.5,
    )  # fmt: skip
    mlp = MlpConfig(hidden=size.hidden, intermediate=size.intermediate, norm=norm)
    hidden, table = (size.hidden,), (size.vocabulary, size.hidden)
    q = (wide, size.hidden)
    kv = (narrow, size.hidden)
    gate = (size.intermediate, size.hidden)
    layer: list[tuple[Kind, ComponentConfig, dict[str, tuple[int, ...]]]] = [
        (Kind.ATTENTION, attention, {"norm": hidden, "q": q, "k": kv, "v": kv, "o": (size.hidden, wide)}),
        (Kind.MLP, mlp, {"norm": hidden, "gate": gate, "up": gate, "down": (size.hidden, size.intermediate)}),
    ]
    return [
        (Kind.EMBEDDING, EmbeddingConfig(vocabulary=size.vocabulary, hidden=size.hidden), {"weight": table}),
        *layer * size.layers,
        (
            Kind.HEAD,
            HeadConfig(vocabulary=size.vocabulary, hidden=size.hidden, norm=norm),
            {"norm": hidden, "weight": table},
        ),
    ]


class Rig:
    """A packed model with a full cache of ``ROWS`` rows, whose pages lie at random places."""

    def __init__(self, size: Size, dtype: torch.dtype, threads: int) -> None:
        name, generator = str(dtype).removeprefix("torch."), torch.Generator().manual_seed(5)
        self._backend, layout = NativeBackend(name, threads), KvLayout(size.kv_heads, HEAD_DIM, name, PAGE)
        self._tables = Tables(ROWS, LENGTH, size.layers, PAGE)
        self._tables.tokens[:] = np.random.default_rng(1).integers(0, size.vocabulary, self._tables.tokens.shape)
        self._backend.reserve(self._tables, TOKENS, ROWS)
        places = list(range(self._tables.slots.size))
        random.Random(3).shuffle(places)
        self._tables.slots.reshape(-1)[:] = places
        self._memory = [aligned(len(places) * self._backend.slot_bytes(layout))]
        self._backend.add_arena(layout, self._memory[0])
        packed = []
        for kind, config, shapes in parts(size):
            kv = layout if kind is Kind.ATTENTION else None
            spec = ComponentSpec(Component(b"", kind, 0, size.hidden, size.hidden, kv), config)
            tensors = {
                role: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) / shape[1] ** 0.5
                for role, shape in shapes.items()
            }
            packed.append(self._pack(spec, tensors))
        self._packed = packed
        self._body = self._backend.compose(packed[:-1], 0)
        self._head = self._backend.compose(packed[-1:], 0)
        self._hidden_TD = torch.zeros(TOKENS, size.hidden, dtype=dtype)
        self._last_ND = torch.zeros(ROWS, size.hidden, dtype=dtype)
        for start in range(0, CACHED, 64):
            for row in range(0, ROWS, 4):
                self.sweep([(row + n, start, 64) for n in range(4)])

    def _pack(self, spec: ComponentSpec, tensors: dict[str, torch.Tensor]) -> Any:
        """In memory that lies together, as a worker's does."""
        backend: Any = self._backend
        if not hasattr(backend, "parts"):  # a checkout in which a component was packed whole
            self._memory.append(aligned(backend.packed_bytes(spec)))
            return backend.pack(spec, tensors, self._memory[-1])
        parts = backend.parts(spec)
        self._memory.append(aligned(sum(-(-part.nbytes // 64) * 64 for part in parts)))
        first = [0] if "first" in signature(backend.pack).parameters else []  # a checkout in which rows had places
        places, offset = {}, 0
        for part in parts:
            places[part.role] = self._memory[-1][offset : offset + part.nbytes]
            backend.pack(part, tensors[part.role], places[part.role], *first)
            offset += -(-part.nbytes // 64) * 64
        return backend.assemble(spec, places)

    def sweep(self, step: Step) -> float:
        """Its seconds: hidden states, logits of the last tokens, the best of them."""
        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*step, strict=True))
        hidden_TD = self._hidden_TD[: int(count_N.sum())]
        began = time.perf_counter()
        self._backend.forward(self._body, Batch(row_N, start_N, count_N, hidden_TD))
        self._backend.argmax(self._backend.logits(self._head, self._last_ND[: len(step)]))
        return time.perf_counter() - began


def aligned(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], at a multiple of 64."""
    raw = torch.zeros(nbytes + 64, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + nbytes]


def main(threads: int, seconds: float, model: str) -> None:
    torch.set_num_threads(1)
    size, dtype = model.split("/")
    rig = Rig(SIZES[size], DTYPES[dtype], threads)
    for name, step in STEPS.items():
        sweeps = max(4, min(int(seconds / rig.sweep(step)), MOST_SWEEPS))
        times = [1000 * rig.sweep(step) for _ in range(sweeps)]
        print(f"{model}/{name} {min(times)} {statistics.median(times)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
