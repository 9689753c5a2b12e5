"""The reference back end: plain torch on a CPU, in transformers' order of operations. The others are measured by it.

Weights are views over the memory they were packed into, row-major in the model's type; a slot holds keys, then values, each
[page, KV heads, head size]. Intermediates come from torch's allocator: the reference is not bound to the rule that a
sweep allocates nothing, and a row's last bits may depend on what else is in the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from blockwright.gpu.backend import Batch, Packed
from blockwright.gpu.errors import BackendError
from blockwright.gpu.model.config import AttentionConfig, ComponentSpec, EmbeddingConfig, HeadConfig, MlpConfig
from blockwright.gpu.tables import Tables
from blockwright.gpu.torch_attention import StepIndex, attend
from blockwright.gpu.torch_ops import feed_forward, rms_norm, rotate
from blockwright.policies.chain import KvLayout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALIGNMENT = 64  # bytes
SLOT_UNIT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class TorchPacked:
    """A component as tensors by role, views over the caller's memory."""

    spec: ComponentSpec
    weights: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TorchRun:
    """Consecutive components; each attention with its KV layer."""

    parts: tuple[tuple[TorchPacked, int], ...]


class TorchBackend:
    """See the module and ``gpu/backend.py``."""

    def __init__(self, dtype: str, threads: int = 1) -> None:
        if dtype not in DTYPES:
            raise BackendError(f"dtype {dtype!r} is not supported by the torch back end; choose {' or '.join(DTYPES)}")
        torch.set_num_threads(max(1, threads))
        self.name = "torch"
        self.numerics = f"torch-{dtype}"
        self.dtype = DTYPES[dtype]
        self._dtype_name = dtype
        self._arenas: dict[KvLayout, torch.Tensor] = {}
        self._tables: Tables | None = None

    def slot_bytes(self, layout: KvLayout) -> int:
        return -(-layout.raw_bytes // SLOT_UNIT) * SLOT_UNIT

    def packed_bytes(self, spec: ComponentSpec) -> int:
        return sum(self._span(math.prod(ref.shape)) for ref in spec.tensors.values())

    def pack(self, spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor) -> Packed:
        weights, offset = {}, 0
        for role, raw in tensors.items():
            place = memory[offset : offset + raw.numel() * self.dtype.itemsize].view(self.dtype).view(raw.shape)
            weights[role] = place.copy_(raw)
            offset += self._span(raw.numel())
        return TorchPacked(spec, weights)

    def _span(self, elements: int) -> int:
        return -(-elements * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def reserve(self, tables: Tables, max_tokens: int, max_rows: int) -> None:
        self._tables = tables

    def add_arena(self, layout: KvLayout, memory: torch.Tensor) -> None:
        if layout.dtype != self._dtype_name:
            raise BackendError(f"KV of {layout.dtype} does not fit a back end of {self._dtype_name}; give both one type")
        stride = self.slot_bytes(layout) // self.dtype.itemsize
        page, heads, size = layout.page_size, layout.kv_heads, layout.head_dim
        flat = memory[: memory.numel() // self.slot_bytes(layout) * self.slot_bytes(layout)].view(self.dtype)
        shape, strides = (flat.numel() // stride, 2, page, heads, size), (stride, page * heads * size, heads * size, size, 1)
        self._arenas[layout] = flat.as_strided(shape, strides)

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> TorchRun:
        placed = []
        for part in parts:
            assert isinstance(part, TorchPacked)
            placed.append((part, kv_layer))
            kv_layer += isinstance(part.spec.config, AttentionConfig)
        return TorchRun(tuple(placed))

    @torch.no_grad()
    def forward(self, run: TorchRun, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before forward()"
        hidden_TD = batch.hidden_TD
        index = StepIndex(batch, self._tables)
        for part, layer in run.parts:
            config, weights = part.spec.config, part.weights
            match config:
                case EmbeddingConfig():
                    hidden_TD.copy_(F.embedding(index.token_T, weights["weight"]))
                case AttentionConfig():
                    hidden_TD += self._attention(part, config, layer, hidden_TD, index)
                case MlpConfig():
                    hidden_TD += feed_forward(rms_norm(hidden_TD, weights["norm"], config.eps), weights)
                case HeadConfig():
                    raise BackendError("a head is computed by logits(), not by forward()")

    def _attention(
        self, part: TorchPacked, config: AttentionConfig, layer: int, hidden_TD: torch.Tensor, index: StepIndex
    ) -> torch.Tensor:
        weights, layout = part.weights, part.spec.component.kv
        assert layout is not None
        x_TD = rms_norm(hidden_TD, weights["norm"], config.eps)
        q_TNH, k_TKH, v_TKH = (
            F.linear(x_TD, weights[role], weights.get(f"{role}_bias")).view(len(x_TD), -1, config.head_dim) for role in "qkv"
        )
        table = index.rotary(config, self.dtype)
        q_TNH, k_TKH = rotate(q_TNH, table), rotate(k_TKH, table)
        out_TQ = attend(q_TNH, k_TKH, v_TKH, self._arenas[layout], layer, index, config.window)
        return F.linear(out_TQ, weights["o"], weights.get("o_bias"))

    @torch.no_grad()
    def logits(self, run: TorchRun, hidden_ND: torch.Tensor) -> torch.Tensor:
        ((part, _),) = run.parts
        config = part.spec.config
        assert isinstance(config, HeadConfig)
        return F.linear(rms_norm(hidden_ND, part.weights["norm"], config.eps), part.weights["weight"]).float()

    def argmax(self, logits_NV: torch.Tensor) -> np.ndarray:
        return np.asarray(np.argmax(logits_NV.numpy(), axis=1), dtype=np.int32)
