"""Products of a component in plain torch: the base's for all rows of a step, plus each row's delta (LoRA, bias shift).

The native kernels do the same in ``gpu/cpu/kernels/deltas.h``. Parts of a forward pass other than products are in
``backend.py``.

Legend: T tokens of a step, G tokens with one delta, D input width, Q output width, P virtual tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from ...model.config import ComponentSpec
from ...model.deltas import LoraTerm
from .calls import TorchCalls


@dataclass(frozen=True, slots=True)
class TorchDelta:
    """A delta as tensors by role, views over the caller's memory."""

    spec: ComponentSpec
    weights: dict[str, torch.Tensor]

    def lora(self, role: str) -> LoraTerm | None:
        assert self.spec.delta is not None
        return next((term for term in self.spec.delta.config.lora if term.role == role), None)

    def shift(self, role: str) -> torch.Tensor | None:
        """Return the bias that the delta adds to a product's rows, or None."""
        bias, replaced = self.weights.get(f"{role}.bias"), self.weights.get(f"{role}.replaced")
        return bias if bias is None or replaced is None else bias - replaced


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive tokens of a step with the same deltas, by place in the run."""

    tokens: slice
    deltas: dict[int, TorchDelta]


def stretches(delta_N: np.ndarray | None, count_N: np.ndarray, attached: dict[int, dict[int, TorchDelta]]) -> list[Stretch]:
    """Return the stretches of a step that have deltas. ``attached`` are a run's deltas by number."""
    if delta_N is None:
        return []
    ends = np.cumsum(count_N)
    borders = [0, *(np.flatnonzero(np.diff(delta_N)) + 1).tolist(), len(delta_N)]
    found = []
    for first, last in pairwise(borders):
        if number := int(delta_N[first]):
            tokens = slice(int(ends[first] - count_N[first]), int(ends[last - 1]))
            found.append(Stretch(tokens, attached[number]))
    return found


class Products:
    """The products of ``weights`` and of some rows' deltas with an input, by ``calls``.

    ``prefix`` begins the deltas' roles in a component with two parts.
    """

    def __init__(
        self, weights: dict[str, torch.Tensor], stretches: Sequence[Stretch], place: int, calls: TorchCalls, prefix: str = ""
    ) -> None:
        self.weights = weights
        self.calls = calls
        self._prefix = prefix
        self.changes = [(s.tokens, s.deltas[place]) for s in stretches if place in s.deltas]

    def __call__(self, role: str, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the product [T, Q] of one role, with the LoRA terms and bias shifts of the rows' deltas added."""
        linear = self.calls.linear
        y_TQ = linear(x_TD, self.weights[role], self.weights.get(f"{role}_bias"))
        name = self._prefix + role
        for tokens, delta in self.changes:
            if (term := delta.lora(name)) is not None:
                low_GR = linear(x_TD[tokens], delta.weights[f"{name}.a"])
                y_TQ[tokens] += linear(low_GR, delta.weights[f"{name}.b"]) * term.scale
            if (shift_Q := delta.shift(name)) is not None:
                y_TQ[tokens] += shift_Q
        return y_TQ

    def fill(self, role: str, position_T: np.ndarray, *outputs: torch.Tensor) -> None:
        """Set the rows of virtual tokens from tensor ``role``: each output gets its part of them, in place."""
        for tokens, delta in self.changes:
            if (rows_PQ := delta.weights.get(role)) is not None:
                within_G = np.flatnonzero(position_T[tokens] < len(rows_PQ))
                parts = rows_PQ[torch.from_numpy(position_T[tokens][within_G])].chunk(len(outputs), dim=1)
                for output, part in zip(outputs, parts, strict=True):
                    output[torch.from_numpy(within_G + tokens.start)] = part.view(-1, *output.shape[1:])
