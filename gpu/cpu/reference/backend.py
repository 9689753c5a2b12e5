"""Reference back end: plain torch on a CPU, in transformers' order of operations. The standard for the other back ends.

Weights are views over the memory they were packed into, row-major in the model's type. A slot holds keys, then values, each
[page, KV heads, head size]. Intermediates come from torch's allocator: the reference is exempt from the rule that a sweep
allocates nothing. A row's bits do not depend on the rest of the step (``calls.py``).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from ....policies.model.chain import HiddenLayout, KvLayout, PageLayout
from ...backend import SLICE, Batch, Packed
from ...errors import BackendError
from ...hidden_slots import HiddenSlots
from ...model.activations import embedding_multiplier, soft_cap
from ...model.config import (
    MLP,
    AttentionConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ParallelConfig,
    StitchConfig,
    TensorRef,
    attention_of,
)
from ...model.rotary import rotate
from ...row_backend import RowBackend, RowPacked, row_states
from ...slots import SlotBytes
from ...tables import Tables
from .attention import StepIndex, attend
from .calls import FixedCalls, variety
from .deltas import Products, TorchDelta, stretches
from .operations import adapt, feed_forward, normalise

ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class TorchRun:
    """Consecutive components, each attention with its KV layer; deltas by number, then by place."""

    parts: tuple[tuple[RowPacked, int], ...]
    deltas: dict[int, dict[int, TorchDelta]] = field(default_factory=dict)


class TorchBackend(RowBackend):
    """Reference back end (see the module and ``gpu/backend.py``)."""

    def __init__(self, dtype: str, threads: int = 1) -> None:
        super().__init__("torch", dtype)
        torch.set_num_threads(max(1, threads))
        self.numerics = f"torch-{variety(max(1, threads))}-{dtype}"
        self._arenas: dict[KvLayout, torch.Tensor] = {}
        self._slots: dict[PageLayout, SlotBytes] = {}
        self._hidden: dict[HiddenLayout, HiddenSlots] = {}
        self._tables: Tables | None = None
        self._calls = FixedCalls()
        self._parts_done = 0  # number of components that were begun

    def _delta_form(self, spec: ComponentSpec) -> tuple[str, int]:
        assert spec.delta is not None
        return "rows", sum(self._span(ref) for ref in spec.delta.tensors.values())

    def pack_delta(
        self, spec: ComponentSpec, tensors: Mapping[str, torch.Tensor], memory: torch.Tensor
    ) -> Generator[int, None, TorchDelta]:
        assert spec.delta is not None
        weights, offset = {}, 0
        for role, raw in tensors.items():
            place = memory[offset : offset + raw.numel() * self.dtype.itemsize].view(self.dtype).view(raw.shape)
            step = max(1, SLICE // (4 * math.prod(raw.shape[1:])))
            for first in range(0, len(raw), step):
                place[first : first + step] = raw[first : first + step]
                yield step * math.prod(raw.shape[1:]) * raw.itemsize
            weights[role] = place.mul_(spec.delta.config.prompt_factor) if role == "prompt" else place
            offset += self._span(spec.delta.tensors[role])
        return TorchDelta(spec, weights)

    def _span(self, ref: TensorRef) -> int:
        return -(-math.prod(ref.shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def reserve(self, tables: Tables, max_tokens: int, max_rows: int) -> None:
        self._tables = tables

    def add_arena(self, layout: PageLayout, memory: torch.Tensor) -> None:
        self._check_layout(layout)
        self._slots[layout] = SlotBytes(memory, self.slot_bytes(layout))
        if isinstance(layout, HiddenLayout):
            self._hidden[layout] = HiddenSlots(memory, self.slot_bytes(layout), layout)
            return
        stride = self.slot_bytes(layout) // self.dtype.itemsize
        page = layout.page_size
        heads = layout.kv_heads
        size = layout.head_dim
        flat = memory[: memory.numel() // self.slot_bytes(layout) * self.slot_bytes(layout)].view(self.dtype)
        shape, strides = (flat.numel() // stride, 2, page, heads, size), (stride, page * heads * size, heads * size, size, 1)
        self._arenas[layout] = flat.as_strided(shape, strides)

    def export(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        self._slots[layout].read(slots, memory)

    def import_(self, layout: PageLayout, slots: Sequence[int], memory: torch.Tensor) -> None:
        self._slots[layout].write(slots, memory)

    def put_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before put_hidden()"
        self._hidden[layout].put(self._tables, column, batch)

    def take_hidden(self, layout: HiddenLayout, column: int, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before take_hidden()"
        self._hidden[layout].take(self._tables, column, batch)

    def compose(self, parts: Sequence[Packed], kv_layer: int) -> TorchRun:
        placed = []
        for part in parts:
            assert isinstance(part, RowPacked)
            placed.append((part, kv_layer))
            kv_layer += attention_of(part.spec.config) is not None
        return TorchRun(tuple(placed))

    def attach(self, run: TorchRun, number: int, deltas: Mapping[int, TorchDelta]) -> None:
        run.deltas[number] = dict(deltas)

    def detach(self, run: TorchRun, number: int) -> None:
        del run.deltas[number]

    @torch.no_grad()
    def forward(self, run: TorchRun, batch: Batch) -> None:
        assert self._tables is not None, "reserve() comes before forward()"
        hidden_TD = batch.hidden_TD
        index = StepIndex(batch, self._tables)
        changed = stretches(batch.delta_N, batch.count_N, run.deltas)
        for place, (part, layer) in enumerate(run.parts):
            config, weights = part.spec.config, part.weights
            product = Products(weights, changed, place, self._calls)
            self._parts_done += 1
            match config:
                case EmbeddingConfig():
                    hidden_TD.copy_(self._embed(weights["weight"], config, index))
                    product.fill("prompt", index.position_T, hidden_TD)
                case AttentionConfig():
                    hidden_TD += self._attention(part, product, config, layer, hidden_TD, index)
                case MlpConfig():
                    hidden_TD += self._feed_forward(product, config, hidden_TD)
                case ParallelConfig():
                    mine = {role.removeprefix(MLP): w for role, w in weights.items() if role.startswith(MLP)}
                    attended_TD = self._attention(part, product, config.attention, layer, hidden_TD, index)
                    second = Products(mine, changed, place, self._calls, MLP)
                    hidden_TD += self._feed_forward(second, config.mlp, hidden_TD) + attended_TD
                case HeadConfig() | StitchConfig():
                    raise BackendError("heads and stitches are computed by logits() and stitch(), not by forward()")

    def _embed(self, weight_VD: torch.Tensor, config: EmbeddingConfig, index: StepIndex) -> torch.Tensor:
        token_T = index.token_T
        embedded_TD = F.embedding(token_T.clamp(min=0), weight_VD)
        if config.multiplier != 1.0:
            embedded_TD = embedded_TD * embedding_multiplier(config, self.dtype)
        return embedded_TD.masked_fill(token_T[:, None] < 0, 0.0)  # what prefix tuning computes there is never read

    def _attention(
        self,
        part: RowPacked,
        product: Products,
        config: AttentionConfig,
        layer: int,
        hidden_TD: torch.Tensor,
        index: StepIndex,
    ) -> torch.Tensor:
        layout = part.spec.component.kv
        norm = config.norm
        weights = product.weights
        assert layout is not None
        x_TD = normalise(hidden_TD, weights, "norm", norm) if config.pre_norm else hidden_TD
        q_TQ, k_TQ, v_TQ = (product(role, x_TD) for role in "qkv")
        if config.qk_norm == "whole":
            q_TQ, k_TQ = normalise(q_TQ, weights, "q_norm", norm), normalise(k_TQ, weights, "k_norm", norm)
        q_TNH, k_TKH, v_TKH = (x_TQ.reshape(len(x_TD), -1, config.head_dim) for x_TQ in (q_TQ, k_TQ, v_TQ))
        if config.qk_norm == "head":
            q_TNH, k_TKH = normalise(q_TNH, weights, "q_norm", norm), normalise(k_TKH, weights, "k_norm", norm)
        table = index.rotary(config, self.dtype)
        q_TNH, k_TKH = rotate(q_TNH, table, config.rope), rotate(k_TKH, table, config.rope)
        product.fill("prefix", index.position_T, k_TKH, v_TKH)
        out_TQ = attend(q_TNH, k_TKH, v_TKH, self._arenas[layout], layer, index, config)
        return self._finish(product("o", out_TQ), hidden_TD, product, config)

    def _feed_forward(self, product: Products, config: MlpConfig, hidden_TD: torch.Tensor) -> torch.Tensor:
        x_TD = normalise(hidden_TD, product.weights, "norm", config.norm) if config.pre_norm else hidden_TD
        return self._finish(feed_forward(x_TD, product, config), hidden_TD, product, config)

    def _finish(
        self, out_TD: torch.Tensor, residual_TD: torch.Tensor, product: Products, config: AttentionConfig | MlpConfig
    ) -> torch.Tensor:
        """Return the term to add to the residual. A bottleneck is applied before the norm."""
        out_TD = adapt(out_TD, residual_TD, product)
        if config.post_norm:
            out_TD = normalise(out_TD, product.weights, "post_norm", config.norm)
        return out_TD if config.multiplier == 1.0 else out_TD * config.multiplier

    @torch.no_grad()
    def logits(self, run: TorchRun, hidden_ND: torch.Tensor, delta_N: np.ndarray | None = None) -> torch.Tensor:
        self._parts_done += 1
        ((part, _),) = run.parts
        config, weights = part.spec.config, part.weights
        assert isinstance(config, HeadConfig)
        changed = stretches(delta_N, np.ones(len(hidden_ND), dtype=np.int32), run.deltas)
        logits_NV = Products(weights, changed, 0, self._calls)("weight", normalise(hidden_ND, weights, "norm", config.norm))
        if config.divisor != 1.0:
            logits_NV = logits_NV / config.divisor
        if config.softcap:
            logits_NV = self._calls.each(partial(soft_cap, cap=config.softcap), logits_NV)
        return logits_NV.float()

    @torch.no_grad()
    def stitch(self, run: TorchRun, hidden_TD: torch.Tensor, out_TE: torch.Tensor) -> None:
        self._parts_done += 1
        ((part, _),) = run.parts
        out_TE.copy_(self._calls.linear(hidden_TD, part.weights["weight"], part.weights["bias"]))

    def states(self, run: TorchRun, hidden_ND: torch.Tensor) -> np.ndarray:
        ((part, _),) = run.parts
        return row_states(part, hidden_ND)

    def settle(self) -> None:
        """Do nothing: every call has ended when it returns."""

    def progress(self) -> int:
        return self._parts_done
