"""The packed form of a component for the native kernels: its parts, their sizes, and how raw tensors fill them.

Owns the order of the parts in a component's memory; the layout inside a part is the kernels' (``kernels/native.h``).
Products that read the same rows (q, k, v; gate and up) are packed tensor by tensor, one behind or beside the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from blockwright.gpu.errors import BackendError
from blockwright.gpu.model.config import (
    AttentionConfig,
    ComponentConfig,
    ComponentSpec,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    NormConfig,
    ParallelConfig,
)
from blockwright.gpu.native.library import library

PANEL = 32  # columns packed together
HALF = PANEL // 2  # of them the gate's; the others are the same columns of "up"
ALIGNMENT = 64  # bytes
SECOND = "mlp."  # before the names of the feed-forward of a parallel component, tensors and parts alike
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NativePacked:
    """A component whose parts lie in the caller's memory; ``parts`` are addresses by name."""

    spec: ComponentSpec
    parts: dict[str, int]
    memory: torch.Tensor  # keeps the addresses valid
    dtype: torch.dtype


def _panels(columns: int, width: int, element: int) -> int:
    """Bytes of packed weights: ``columns`` padded to whole panels, ``width`` to whole units of 4 bytes."""
    return -(-columns // PANEL) * PANEL * -(-width * element // 4) * 4


def part_sizes(config: ComponentConfig, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each part of the packed form, in the order in which they lie."""
    element = dtype.itemsize
    match config:
        case EmbeddingConfig():
            return {"w0": config.vocabulary * config.hidden * element}
        case HeadConfig():
            return {"w0": _panels(config.vocabulary, config.hidden, element)} | _norm_sizes(config)
        case AttentionConfig():
            inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
            sizes = {
                "w0": _panels(inner, config.hidden, element) + 2 * _panels(kv, config.hidden, element),
                "w1": _panels(config.hidden, inner, element),
            } | _norm_sizes(config)
            if config.qkv_bias:
                sizes["b0"] = _floats(inner) + 2 * _floats(kv)
            if config.qk_norm:
                heads = (config.heads, config.kv_heads) if config.qk_norm == "whole" else (1, 1)
                sizes |= {f"{role}_norm": _floats(n * config.head_dim) for role, n in zip("qk", heads, strict=True)}
            return sizes | ({"b1": _floats(config.hidden)} if config.o_bias else {})
        case MlpConfig():
            columns = _gated(config.intermediate) if config.gated else config.intermediate
            sizes = {
                "w0": _panels(columns, config.hidden, element),
                "w1": _panels(config.hidden, config.intermediate, element),
            }
            biases = {"b0": _floats(columns), "b1": _floats(config.hidden)} if config.bias else {}
            return sizes | _norm_sizes(config) | biases
        case ParallelConfig():
            second = part_sizes(config.mlp, dtype)
            return part_sizes(config.attention, dtype) | {SECOND + name: size for name, size in second.items()}


def _norm_sizes(config: AttentionConfig | MlpConfig | HeadConfig) -> dict[str, int]:
    size = _floats(config.hidden)
    if isinstance(config, HeadConfig):
        return {"norm": size} | ({"norm_bias": size} if config.norm.kind == "layer" else {})
    sizes = {"norm": size} if config.pre_norm else {}
    if config.pre_norm and config.norm.kind == "layer":
        sizes["norm_bias"] = size
    return sizes | ({"post_norm": size} if config.post_norm else {})


def _floats(columns: int) -> int:
    return -(-columns // PANEL) * PANEL * 4


def _gated(intermediate: int) -> int:
    """Packed columns of gate and up together."""
    return -(-intermediate // HALF) * PANEL


def packed_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Bytes of the whole packed form."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in part_sizes(spec.config, dtype).values())


def pack(spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype) -> NativePacked:
    """Fill ``memory`` (uint8 [packed_bytes]). Raises ``BackendError`` for memory that is too small or misaligned."""
    need = packed_bytes(spec, dtype)
    if memory.numel() < need or memory.data_ptr() % ALIGNMENT or not memory.is_contiguous():
        raise BackendError(
            f"packing needs {need} contiguous bytes aligned to {ALIGNMENT}, but {memory.numel()} at {memory.data_ptr():#x} "
            "were given: the caller's memory is wrong"
        )
    views, offset = {}, 0
    for name, size in part_sizes(spec.config, dtype).items():
        views[name] = memory[offset : offset + size]
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    _fill(spec.config, tensors, views, dtype)
    return NativePacked(spec, {name: view.data_ptr() for name, view in views.items()}, memory, dtype)


def second(by_name: dict[str, T]) -> dict[str, T]:
    """Of a component of two: what belongs to the feed-forward, under its own names."""
    return {name.removeprefix(SECOND): value for name, value in by_name.items() if name.startswith(SECOND)}


def _fill(
    config: ComponentConfig, tensors: dict[str, torch.Tensor], views: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    match config:
        case EmbeddingConfig():
            raw = tensors["weight"]
            views["w0"].view(dtype).view(raw.shape).copy_(raw)
            return
        case HeadConfig():
            _weight(views["w0"], tensors["weight"], dtype)
            _norms(config.norm, tensors, views, dtype)
        case AttentionConfig():
            _fill_attention(config, tensors, views, dtype)
        case MlpConfig():
            _fill_mlp(config, tensors, views, dtype)
        case ParallelConfig():
            _fill(config.attention, tensors, views, dtype)
            _fill(config.mlp, second(tensors), second(views), dtype)


def _fill_attention(
    config: AttentionConfig, tensors: dict[str, torch.Tensor], views: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    offset = 0
    for role in "qkv":
        offset += _weight(views["w0"][offset:], tensors[role], dtype)
    _weight(views["w1"], tensors["o"], dtype)
    _norms(config.norm, tensors, views, dtype)
    if config.qkv_bias:
        offset = 0
        for role in "qkv":
            size = _floats(tensors[role].shape[0])
            _vector(views["b0"][offset : offset + size], tensors[f"{role}_bias"], dtype)
            offset += size
    if config.o_bias:
        _vector(views["b1"], tensors["o_bias"], dtype)


def _fill_mlp(
    config: MlpConfig, tensors: dict[str, torch.Tensor], views: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    if config.gated:
        _weight(views["w0"], tensors["gate"], dtype, HALF, 0)
        _weight(views["w0"], tensors["up"], dtype, HALF, HALF)
    else:
        _weight(views["w0"], tensors["up"], dtype)
    _weight(views["w1"], tensors["down"], dtype)
    _norms(config.norm, tensors, views, dtype)
    if not config.bias:
        return
    _vector(views["b1"], tensors["down_bias"], dtype)
    if not config.gated:
        _vector(views["b0"], tensors["up_bias"], dtype)
        return
    pairs = views["b0"].view(torch.float32).view(-1, 2, HALF)
    for side, role in enumerate(("gate_bias", "up_bias")):
        flat = torch.zeros(pairs.shape[0] * HALF)
        flat[: tensors[role].numel()] = tensors[role].to(dtype)
        pairs[:, side] = flat.view(-1, HALF)


def _norms(norm: NormConfig, tensors: dict[str, torch.Tensor], views: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    for role in ("norm", "post_norm", "q_norm", "k_norm"):
        if role in views:
            _vector(views[role], tensors[role], dtype, norm.offset)
    if "norm_bias" in views:
        _vector(views["norm_bias"], tensors["norm_bias"], dtype)


def _weight(view: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype, width: int = PANEL, offset: int = 0) -> int:
    """Pack [columns, width of the rows], and say how many bytes that took."""
    source = raw.to(dtype).contiguous()
    columns, rows_width = source.shape
    library().bw_pack(view.data_ptr(), source.data_ptr(), columns, rows_width, dtype.itemsize, width, offset)
    return _panels(columns, rows_width, dtype.itemsize)


def _vector(view: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype, offset: float = 0.0) -> None:
    """A norm weight or a bias as float32 (of values of the model's type, plus ``offset``), zeros behind it."""
    floats = view.view(torch.float32).zero_()
    floats[: raw.numel()] = raw.to(dtype).float() + offset
