"""Packed form of a component for the native kernels: one part for each raw tensor, filled by rows.

Owns the choice of a form for each tensor; the layout inside a form is the kernels' (``kernels/native.h``). Nothing is fused:
a product over several weights (q, k, v; gate and up) reads each where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...backend import PackedPart
from ...errors import BackendError
from ...model.config import MLP, ComponentConfig, ComponentSpec, EmbeddingConfig, ParallelConfig, StitchConfig, tensor_shapes
from ...weights.identity import packed_id
from .library import library

PANEL, HALF = 32, 16  # columns packed together; HALF: in the last panel of a low-rank A, if it has no more
ALIGNMENT = 64  # bytes
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OFFSET = ("norm", "post_norm", "q_norm", "k_norm")  # roles to which the norm's offset is added


@dataclass(frozen=True, slots=True)
class NativePacked:
    """A component with its parts in the caller's memory, by role."""

    spec: ComponentSpec
    memory: Mapping[str, torch.Tensor]
    dtype: torch.dtype

    def addresses(self) -> dict[str, int]:
        return {role: memory.data_ptr() for role, memory in self.memory.items()}


def parts_of(spec: ComponentSpec, dtype: torch.dtype) -> list[PackedPart]:
    """Return the parts of the whole component, in the order of its tensors."""
    return [_part(spec, role, shape, dtype) for role, shape in tensor_shapes(spec.config).items()]


def _part(spec: ComponentSpec, role: str, shape: tuple[int, ...], dtype: torch.dtype) -> PackedPart:
    element = dtype.itemsize
    added = 0.0
    together = 1
    if len(shape) == 1:
        form = "vector"
        nbytes = -(-shape[0] // PANEL) * PANEL * 4
        together = shape[0]
        added = _offset(spec.config, role)
    elif isinstance(spec.config, EmbeddingConfig):
        form, nbytes = "rows", shape[0] * shape[1] * element
    else:  # columns padded to whole panels, the width of rows to whole units of 4 bytes
        form = "panels"
        nbytes = -(-shape[0] // PANEL) * PANEL * -(-shape[1] * element // 4) * 4
        together = PANEL
    return PackedPart(role, packed_id(spec, role, f"{form} {dtype} {added}"), nbytes, form, shape, together, added)


def _offset(config: ComponentConfig, role: str) -> float:
    if isinstance(config, ParallelConfig):
        return _offset(config.mlp if role.startswith(MLP) else config.attention, role.removeprefix(MLP))
    if role not in OFFSET or isinstance(config, EmbeddingConfig | StitchConfig):
        return 0.0
    return config.norm.offset


def pack(part: PackedPart, raw: torch.Tensor, memory: torch.Tensor, dtype: torch.dtype) -> None:
    """Pack a tensor, or a piece of it. Raises ``BackendError`` for memory that does not fit."""
    aligned = part.form == "rows" or memory.data_ptr() % ALIGNMENT == 0  # a row is copied to wherever it begins
    if memory.numel() != part.nbytes or not aligned or not memory.is_contiguous():
        raise BackendError(
            f"{part.role} needs {part.nbytes} contiguous bytes aligned to {ALIGNMENT}, but {memory.numel()} at "
            f"{memory.data_ptr():#x} were given: the caller's memory is wrong"
        )
    match part.form:
        case "vector":  # as float32, from values of the model's type, with zeros behind them
            floats = memory.view(torch.float32).zero_()
            floats[: raw.numel()] = raw.to(dtype).float() + part.added
        case "rows":
            memory.view(dtype).view(part.shape).copy_(raw)
        case _:
            source = raw.to(dtype).contiguous()
            rows, width = source.shape
            library().bw_pack(memory.data_ptr(), source.data_ptr(), rows, width, dtype.itemsize, False)
