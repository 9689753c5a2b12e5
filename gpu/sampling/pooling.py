"""Pooling: the vector of a sequence, from its hidden states behind the last norm, or from logits of its last position.

A state is a function of its own hidden state alone, computed in float64. States are added in the order of their positions.
So a vector has the same bits however its prompt was cut into chunks, and whatever else was in the batch. The same code
serves every back end: hidden states are brought to the host. Legend: T positions, N rows, D hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ...policies.plan.pooling import LAST, Pooling
from ..errors import ExecutorError
from ..model.config import NormConfig

SHORTEST = 1e-12  # a vector's length by which it is divided at least, as in torch's normalize
Floats = np.ndarray


def normed(hidden_ND: torch.Tensor, weight_D: Floats, bias_D: Floats | None, norm: NormConfig) -> Floats:
    """Return float64 [N, D]: hidden states behind a norm, whose ``weight_D`` has its offset already.

    A row is summed in an order that its width alone decides, so that the others change no bit of it.
    """
    wide_ND = hidden_ND.float().numpy().astype(np.float64)
    with np.errstate(all="ignore"):  # what is no number is found when the vector is made
        if norm.kind == "layer":
            wide_ND -= wide_ND.mean(axis=1, keepdims=True)
        wide_ND /= np.sqrt(np.square(wide_ND).mean(axis=1, keepdims=True) + norm.eps)
        wide_ND *= weight_D
        if bias_D is not None:
            wide_ND += bias_D
    return wide_ND


def picked(logits_V: Floats, pooling: Pooling) -> bytes:
    """Return the vector of a sequence that wants logits; empty if one of them is not finite."""
    return _packed(logits_V[pooling.tokens].astype(np.float64), pooling)


class RowPool:
    """The states of one table row so far, as its pooling wants them."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._count = 0
        self._found: dict[str, Floats] = {}

    @property
    def whole(self) -> bool:
        """True if it needs the states of all positions."""
        return self._pooling.whole

    def add(self, state_TD: Floats, start: int) -> None:
        """Add the states of positions from ``start`` on: all from 0 on in order, unless only the last one is wanted."""
        if self._pooling.whole and start != self._count:
            raise ExecutorError(
                f"the states of {self._count} positions are pooled, and the next are of {start}: a plan is wrong"
            )
        self._count = start + len(state_TD)
        with np.errstate(all="ignore"):
            for position, state_D in enumerate(state_TD, start):
                self._add(state_D, position)

    def _add(self, state_D: Floats, position: int) -> None:
        found = self._found
        for mode in self._pooling.modes:
            if mode not in found or mode == LAST:
                found[mode] = state_D.copy()
            elif mode == "cls":
                continue
            elif mode == "max":
                np.maximum(found[mode], state_D, out=found[mode])
            else:
                found[mode] += state_D * (position + 1) if mode == "weightedmean" else state_D

    def vector(self) -> bytes:
        """Return the vector; empty if one of its values is not finite."""
        count = self._count
        divisors = {"mean": count, "mean_sqrt_len_tokens": math.sqrt(count), "weightedmean": count * (count + 1) // 2}
        with np.errstate(all="ignore"):
            pooled = [self._found[mode] / divisors.get(mode, 1) for mode in self._pooling.modes]
        return _packed(np.concatenate(pooled), self._pooling)


def _packed(values: Floats, pooling: Pooling) -> bytes:
    if pooling.dimensions:
        values = values[: pooling.dimensions]
    with np.errstate(all="ignore"):
        if pooling.normalize:
            values = values / max(math.sqrt(float(np.square(values).sum())), SHORTEST)
        narrow = values.astype("<f4")
    return narrow.tobytes() if np.isfinite(narrow).all() else b""


def host_norm(weights: Sequence[torch.Tensor], offset: float) -> tuple[Floats, Floats | None]:
    """Return a norm's weight, with its offset, and its bias as float64, wherever and in which type they are."""
    weight, *bias = (tensor.to("cpu", torch.float32).numpy().astype(np.float64) for tensor in weights)
    return weight + offset, bias[0] if bias else None
