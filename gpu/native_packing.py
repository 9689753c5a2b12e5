"""The packed form of a component for the native kernels: its parts, their sizes, and how raw tensors fill them.

Owns the order of the parts in a component's memory; the layout inside a part is the kernels' (``kernels/native.h``).
Products that read the same rows (q, k, v; gate and up) are packed tensor by tensor, one behind or beside the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockwright.gpu.errors import BackendError
from blockwright.gpu.model.config import AttentionConfig, ComponentSpec, EmbeddingConfig, HeadConfig, MlpConfig
from blockwright.gpu.native_library import library

PANEL = 32  # columns packed together
HALF = PANEL // 2  # of them the gate's; the others are the same columns of "up"
ALIGNMENT = 64  # bytes
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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


def part_sizes(spec: ComponentSpec, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each part of the packed form, in the order in which they lie."""
    config, element = spec.config, dtype.itemsize
    match config:
        case EmbeddingConfig():
            return {"w0": config.vocabulary * config.hidden * element}
        case HeadConfig():
            return {"w0": _panels(config.vocabulary, config.hidden, element), "norm": _floats(config.hidden)}
        case AttentionConfig():
            inner, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
            sizes = {
                "w0": _panels(inner, config.hidden, element) + 2 * _panels(kv, config.hidden, element),
                "w1": _panels(config.hidden, inner, element),
                "norm": _floats(config.hidden),
            }
            biases = {"b0": _floats(inner) + 2 * _floats(kv)} if config.qkv_bias else {}
            return sizes | biases | ({"b1": _floats(config.hidden)} if config.o_bias else {})
        case MlpConfig():
            sizes = {
                "w0": _panels(_gated(config.intermediate), config.hidden, element),
                "w1": _panels(config.hidden, config.intermediate, element),
                "norm": _floats(config.hidden),
            }
            biases = {"b0": _floats(_gated(config.intermediate)), "b1": _floats(config.hidden)}
            return sizes | (biases if config.bias else {})


def _floats(columns: int) -> int:
    return -(-columns // PANEL) * PANEL * 4


def _gated(intermediate: int) -> int:
    """Packed columns of gate and up together."""
    return -(-intermediate // HALF) * PANEL


def packed_bytes(spec: ComponentSpec, dtype: torch.dtype) -> int:
    """Bytes of the whole packed form."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in part_sizes(spec, dtype).values())


def pack(spec: ComponentSpec, tensors: dict[str, torch.Tensor], memory: torch.Tensor, dtype: torch.dtype) -> NativePacked:
    """Fill ``memory`` (uint8 [packed_bytes]). Raises ``BackendError`` for memory that is too small or misaligned."""
    need = packed_bytes(spec, dtype)
    if memory.numel() < need or memory.data_ptr() % ALIGNMENT or not memory.is_contiguous():
        raise BackendError(
            f"packing needs {need} contiguous bytes aligned to {ALIGNMENT}, but {memory.numel()} at {memory.data_ptr():#x} "
            "were given: the caller's memory is wrong"
        )
    views, offset = {}, 0
    for name, size in part_sizes(spec, dtype).items():
        views[name] = memory[offset : offset + size]
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    _fill(spec, tensors, views, dtype)
    return NativePacked(spec, {name: view.data_ptr() for name, view in views.items()}, memory, dtype)


def _fill(spec: ComponentSpec, tensors: dict[str, torch.Tensor], views: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    match spec.config:
        case EmbeddingConfig():
            raw = tensors["weight"]
            views["w0"].view(dtype).view(raw.shape).copy_(raw)
            return
        case HeadConfig():
            _weight(views["w0"], tensors["weight"], dtype)
        case AttentionConfig():
            offset = 0
            for role in "qkv":
                offset += _weight(views["w0"][offset:], tensors[role], dtype)
            _weight(views["w1"], tensors["o"], dtype)
        case MlpConfig():
            _weight(views["w0"], tensors["gate"], dtype, HALF, 0)
            _weight(views["w0"], tensors["up"], dtype, HALF, HALF)
            _weight(views["w1"], tensors["down"], dtype)
    _vector(views["norm"], tensors["norm"], dtype)
    if "b0" in views and isinstance(spec.config, AttentionConfig):
        offset = 0
        for role in "qkv":
            size = _floats(tensors[role].shape[0])
            _vector(views["b0"][offset : offset + size], tensors.get(f"{role}_bias"), dtype)
            offset += size
    elif "b0" in views:
        pairs = views["b0"].view(torch.float32).view(-1, 2, HALF)
        for side, role in enumerate(("gate_bias", "up_bias")):
            flat = torch.zeros(pairs.shape[0] * HALF)
            if role in tensors:
                flat[: tensors[role].numel()] = tensors[role].to(dtype)
            pairs[:, side] = flat.view(-1, HALF)
    if "b1" in views:
        role = "o_bias" if isinstance(spec.config, AttentionConfig) else "down_bias"
        _vector(views["b1"], tensors.get(role), dtype)


def _weight(view: torch.Tensor, raw: torch.Tensor, dtype: torch.dtype, width: int = PANEL, offset: int = 0) -> int:
    """Pack [columns, width of the rows], and say how many bytes that took."""
    source = raw.to(dtype).contiguous()
    columns, rows_width = source.shape
    library().bw_pack(view.data_ptr(), source.data_ptr(), columns, rows_width, dtype.itemsize, width, offset)
    return _panels(columns, rows_width, dtype.itemsize)


def _vector(view: torch.Tensor, raw: torch.Tensor | None, dtype: torch.dtype) -> None:
    """A norm weight or a bias as float32 (of values of the model's type), zeros behind it; all zeros without one."""
    floats = view.view(torch.float32).zero_()
    if raw is not None:
        floats[: raw.numel()] = raw.to(dtype)
