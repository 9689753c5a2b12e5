"""A small random chain, what plain dense torch computes for it, and a rig that runs it on the native back end.

The oracle works in float64 on weights of the model's type and rounds nothing. Arenas begin full of NaN, so that a result
that depends on unwritten places shows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F

from blockwright.gpu.backend import Backend, Batch, Packed
from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.errors import BackendError
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
from blockwright.gpu.model.rotary import inverse_frequencies
from blockwright.gpu.select import SETS, open_backend
from blockwright.gpu.tables import Tables
from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.tests.cap import CAP

LIMIT = CAP  # instruction set of a rig that names none
EPS = 1e-5
NORM = NormConfig(eps=EPS)
ROPE = RopeConfig(theta=10000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A chain: embedding, (attention, mlp) x layers, head."""

    hidden: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 72
    vocabulary: int = 97
    layers: int = 2
    window: int | None = None
    softcap: float = 0.0
    biases: bool = False
    rope: RopeConfig = ROPE

    def configs(self) -> list[ComponentConfig]:
        attention = AttentionConfig(
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm=NORM,
            rope=self.rope,
            scale=self.head_dim**-0.5,
            window=self.window,
            softcap=self.softcap,
            qkv_bias=self.biases,
            o_bias=self.biases,
        )
        mlp = MlpConfig(hidden=self.hidden, intermediate=self.intermediate, norm=NORM, bias=self.biases)
        return [
            EmbeddingConfig(vocabulary=self.vocabulary, hidden=self.hidden),
            *[attention, mlp] * self.layers,
            HeadConfig(vocabulary=self.vocabulary, hidden=self.hidden, norm=NORM),
        ]


def tensors_of(config: ComponentConfig, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Raw float32 tensors by role; hidden states stay near unit size."""

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    def vector(size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * 0.3

    match config:
        case EmbeddingConfig():
            return {"weight": torch.randn(config.vocabulary, config.hidden, generator=generator)}
        case HeadConfig():
            return {"norm": 1 + vector(config.hidden), "weight": weight(config.vocabulary, config.hidden)}
        case AttentionConfig():
            sizes = {"q": config.heads * config.head_dim} | dict.fromkeys("kv", config.kv_heads * config.head_dim)
            tensors = {role: 2 * weight(size, config.hidden) for role, size in sizes.items()}
            tensors["o"] = weight(config.hidden, sizes["q"])
            if config.qkv_bias:
                tensors |= {f"{role}_bias": vector(size) for role, size in (sizes | {"o": config.hidden}).items()}
        case MlpConfig():
            sizes = {"gate": config.intermediate, "up": config.intermediate}
            tensors = {role: weight(size, config.hidden) for role, size in sizes.items()}
            tensors["down"] = weight(config.hidden, config.intermediate)
            if config.bias:
                tensors |= {f"{role}_bias": vector(size) for role, size in (sizes | {"down": config.hidden}).items()}
    return tensors | {"norm": 1 + vector(config.hidden)}


class Chain:
    """Configurations and raw tensors of a shape, from a fixed seed; tensors hold values of the model's type."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(5)
        self.shape, self.dtype = shape, dtype
        self.configs = shape.configs()
        self.tensors = [
            {role: raw.to(dtype).float() for role, raw in tensors_of(config, generator).items()} for config in self.configs
        ]
        self.tokens = torch.randint(0, shape.vocabulary, (2048,), generator=generator).tolist()

    def hidden(self, tokens: Sequence[int]) -> torch.Tensor:
        """float64 [T, D] before the head."""
        x_TD = self.tensors[0]["weight"].double()[list(tokens)]
        for config, raw in zip(self.configs[1:-1], self.tensors[1:-1], strict=True):
            weights = {role: tensor.double() for role, tensor in raw.items()}
            normed_TD = self._norm(x_TD, weights["norm"])
            if isinstance(config, AttentionConfig):
                added_TD = self._attention(config, weights, normed_TD)
            else:
                gate_TI = F.silu(_linear(normed_TD, weights, "gate"))
                added_TD = _linear(gate_TI * _linear(normed_TD, weights, "up"), weights, "down")
            x_TD = x_TD + added_TD
        return x_TD

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """float64 [T, V]."""
        weights = {role: tensor.double() for role, tensor in self.tensors[-1].items()}
        return _linear(self._norm(self.hidden(tokens), weights["norm"]), weights, "weight")

    def _norm(self, x_TD: torch.Tensor, weight_D: torch.Tensor) -> torch.Tensor:
        return x_TD * torch.rsqrt(x_TD.pow(2).mean(-1, keepdim=True) + EPS) * weight_D

    def _attention(self, config: AttentionConfig, weights: dict[str, torch.Tensor], x_TD: torch.Tensor) -> torch.Tensor:
        length, half = x_TD.shape[0], config.head_dim // 2
        q_NTH, k_NTH, v_NTH = (
            _linear(x_TD, weights, role).unflatten(1, (-1, config.head_dim)).transpose(0, 1) for role in "qkv"
        )
        # angles in float32, as every back end has them
        angle_TH = torch.arange(length).float()[:, None] * inverse_frequencies(config.rope, config.head_dim)
        cos_TH, sin_TH = angle_TH.cos().double(), angle_TH.sin().double()

        def rotate(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., :half], x[..., half:]
            return torch.cat((a * cos_TH - b * sin_TH, b * cos_TH + a * sin_TH), dim=-1)

        group = config.heads // config.kv_heads
        k_NTH, v_NTH = rotate(k_NTH).repeat_interleave(group, 0), v_NTH.repeat_interleave(group, 0)
        position_T = torch.arange(length)
        distance_TT = position_T[:, None] - position_T
        seen_TT = (distance_TT >= 0) & (distance_TT < (config.window or length + 1))
        scores_NTT = rotate(q_NTH) @ k_NTH.transpose(1, 2) * config.scale
        if config.softcap:
            scores_NTT = (scores_NTT / config.softcap).tanh() * config.softcap
        weight_NTT = torch.softmax(scores_NTT.masked_fill(~seen_TT, -math.inf), dim=-1)
        return _linear((weight_NTT @ v_NTH).transpose(0, 1).flatten(1), weights, "o")


def _linear(x: torch.Tensor, weights: dict[str, torch.Tensor], role: str) -> torch.Tensor:
    return F.linear(x, weights[role], weights.get(f"{role}_bias"))


def spec_of(config: ComponentConfig, kv: KvLayout | None) -> ComponentSpec:
    kinds = {EmbeddingConfig: Kind.EMBEDDING, AttentionConfig: Kind.ATTENTION, MlpConfig: Kind.MLP, HeadConfig: Kind.HEAD}
    kind = kinds[type(config)]
    component = Component(b"", kind, 0, config.hidden, config.hidden, kv if kind is Kind.ATTENTION else None)
    return ComponentSpec(component, config)


def aligned(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], at a multiple of 64."""
    raw = torch.zeros(nbytes + 64, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    return raw[skip : skip + nbytes]


def pack_whole(backend: Backend, spec: ComponentSpec, tensors: dict[str, torch.Tensor]) -> Packed:
    """A component in memory of its own; parts begin full of ones, which must all be overwritten."""
    memory = {}
    for part in backend.parts(spec):
        memory[part.role] = aligned(part.nbytes).fill_(0xFF)
        backend.pack(part, tensors[part.role], memory[part.role])
    return backend.assemble(spec, memory)


def instruction_sets(dtype: str) -> list[str]:
    """That native kernels for this type can use here, the cap considered; the best first."""
    found: dict[str, str] = {}  # by their numerics: a set that is not there is replaced by the next
    for name in SETS[SETS.index(CAP) if CAP else 0 :]:
        try:
            backend = open_backend("native", dtype, 1, name)
        except BackendError:
            return []
        found[backend.numerics] = name
    return list(found.values())


class NativeRig:
    """A chain packed and composed; table row r holds the chain's tokens shifted by r, slots are in random order."""

    def __init__(
        self,
        chain: Chain,
        threads: int = 1,
        page_size: int = 16,
        instruction_set: str = "",
        rows: int = 3,
        max_length: int = 128,
        max_tokens: int = 128,
    ) -> None:
        dtype = str(chain.dtype).removeprefix("torch.")
        shape = chain.shape
        self.backend = cast(NativeBackend, open_backend("native", dtype, threads, instruction_set or LIMIT))
        self.chain, self.max_tokens = chain, max_tokens
        self.layout = KvLayout(shape.kv_heads, shape.head_dim, dtype, page_size)
        self.tables = Tables(rows, max_length, shape.layers + 1, page_size)
        for row in range(rows):
            self.tables.tokens[row] = self.tokens(row, max_length)
        self.backend.reserve(self.tables, max_tokens, rows)
        slots = list(range(self.tables.slots.size))
        random.Random(3).shuffle(slots)
        self.tables.slots.reshape(-1)[:] = slots
        self.hidden = torch.empty(2 * max_tokens, shape.hidden, dtype=chain.dtype)  # threads that are late may still read it
        self.arena = aligned(len(slots) * self.backend.slot_bytes(self.layout))
        self.arena.view(chain.dtype).fill_(math.nan)
        self.backend.add_arena(self.layout, self.arena)
        packed = []
        for config, tensors in zip(chain.configs, chain.tensors, strict=True):
            spec = spec_of(config, self.layout)
            packed.append(pack_whole(self.backend, spec, tensors))
        self.packed = packed
        self.body = self.backend.compose(packed[:-1], kv_layer=1)
        self.head = self.backend.compose(packed[-1:], kv_layer=0)

    def tokens(self, row: int, length: int) -> list[int]:
        return self.chain.tokens[row : row + length]

    def forward(self, batch: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Hidden states [T, D] of (row, start, count); valid until the next call."""
        row_N, start_N, count_N = (np.array(column, dtype=np.int32) for column in zip(*batch, strict=True))
        hidden_TD = self.hidden[: int(count_N.sum())].fill_(math.nan)
        self.backend.forward(self.body, Batch(row_N, start_N, count_N, hidden_TD))
        return hidden_TD

    def logits(self, batch: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """float32 [T, V], a copy."""
        return self.backend.logits(self.head, self.forward(batch)).clone()

    def in_chunks(self, row: int, length: int, chunk: int) -> torch.Tensor:
        return torch.cat([self.logits([(row, at, min(chunk, length - at))]) for at in range(0, length, chunk)])


def difference(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference as a share of the largest value."""
    return float((ours.double() - exact).abs().max() / exact.abs().max())
