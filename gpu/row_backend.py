"""Packing and choice of tokens, shared by the torch reference and the CUDA back ends: weights are rows in the model's type.

A checkpoint has them so: packing is a conversion, and equal tensors have equal ids on both. Tokens are chosen on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..policies.model.chain import PageLayout
from .backend import HOST_ALIGNMENT, HOST_CHUNK, Packed, PackedPart
from .errors import BackendError
from .model.config import ComponentSpec, HeadConfig, tensor_shapes
from .sampling.masks import TokenMasks, allowed_tokens, best_tokens
from .sampling.pooling import host_norm, normed
from .weights.identity import packed_id

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SLOT_UNIT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class RowPacked:
    """A component as tensors by role, views over the caller's memory."""

    spec: ComponentSpec
    weights: dict[str, torch.Tensor]


def row_states(packed: RowPacked, hidden_ND: torch.Tensor) -> np.ndarray:
    """Return the states behind an embedder's head whose weights are rows, in any memory."""
    config = packed.spec.config
    assert isinstance(config, HeadConfig), "states are a head's"
    vectors = [packed.weights[role] for role in ("norm", "norm_bias") if role in packed.weights]
    return normed(hidden_ND, *host_norm(vectors, config.norm.offset), config.norm)


class RowBackend:
    """The packing, and the choice of tokens, of a back end whose weights are rows."""

    def __init__(self, name: str, dtype: str) -> None:
        if dtype not in DTYPES:
            raise BackendError(f"dtype {dtype!r} is not supported by the {name} back end; choose {' or '.join(DTYPES)}")
        self.name = name
        self.numerics = f"{name}-{dtype}"
        self.dtype = DTYPES[dtype]
        self.slot_unit = SLOT_UNIT
        self.chunk, self.alignment = HOST_CHUNK, HOST_ALIGNMENT
        self._dtype_name = dtype

    def slot_bytes(self, layout: PageLayout) -> int:
        return -(-layout.raw_bytes // self.slot_unit) * self.slot_unit

    def parts(self, spec: ComponentSpec) -> list[PackedPart]:
        if spec.delta is not None:
            form, nbytes = self._delta_form(spec)
            return [PackedPart("delta", packed_id(spec, "delta", f"{form} {self.dtype}"), nbytes, "delta", (1,), 1)]
        return [
            PackedPart(
                role, packed_id(spec, role, f"rows {self.dtype}"), math.prod(shape) * self.dtype.itemsize, "rows", shape, 1
            )
            for role, shape in tensor_shapes(spec.config).items()
        ]

    def argmax(self, logits_NV: torch.Tensor, masks: TokenMasks | None = None) -> np.ndarray:
        return best_tokens(logits_NV.numpy(), masks)

    def allowed(self, logits_V: np.ndarray, mask_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return allowed_tokens(logits_V, mask_W)

    def _delta_form(self, spec: ComponentSpec) -> tuple[str, int]:
        """Return the name of a delta's packed form, and its bytes."""
        raise NotImplementedError

    def pack(self, part: PackedPart, raw: torch.Tensor, memory: torch.Tensor) -> None:
        memory.view(self.dtype).view(part.shape).copy_(raw)

    def assemble(self, spec: ComponentSpec, memory: Mapping[str, torch.Tensor]) -> Packed:
        shapes = tensor_shapes(spec.config)
        return RowPacked(spec, {role: place.view(self.dtype).view(shapes[role]) for role, place in memory.items()})

    def _check_layout(self, layout: PageLayout) -> None:
        if layout.dtype != self._dtype_name:
            raise BackendError(f"KV of {layout.dtype} does not fit a back end of {self._dtype_name}; give both one type")
