"""Finiteness check of a LoRA's product: each half may be finite, and their product too large to compute with."""

from __future__ import annotations

from ..errors import CheckpointError
from ..model.config import TensorRef
from .finite import BEYOND, largest
from .identity import pieces


def check_product(a: TensorRef, b: TensorRef, scale: float) -> None:
    """Check one term of a LoRA whose halves are finite. Raises CheckpointError."""
    bound = abs(scale) * _most(a) * _most(b)
    if not bound < BEYOND:
        raise CheckpointError(
            f"{a.path}: {a.name} and lora_B together, with alpha by rank {scale:g}, have values of up to {bound:.2g}, so "
            f"large ({BEYOND:.1e} and more) that every answer would be garbage; train the adapter again, or lower its alpha"
        )


def _most(ref: TensorRef) -> float:
    return max((largest(piece, ref.dtype) for piece in pieces(ref)), default=0.0)
