"""Functions of single elements that models name: activations, the cap of scores and logits, the factor of embeddings.

Every back end computes what these do; the ones that run on torch call them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from .config import EmbeddingConfig


def _gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_fast(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": _gelu_new,  # written out as in transformers, because each operation rounds
    "gelu_fast": _gelu_fast,
}


BOTTLENECKS = ACTIVATIONS | {"relu": F.relu}


def embedding_multiplier(config: EmbeddingConfig, dtype: torch.dtype) -> float:
    """Return the factor of an embedding as a model computes with it in that type."""
    return float(torch.tensor(config.multiplier).to(dtype)) if config.rounded else config.multiplier


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return ``cap * tanh(x / cap)``, rounded after each operation as in transformers; 0 means no cap."""
    return torch.tanh(x / cap) * cap if cap else x
