"""Operations with products by a library: cuBLAS on a card, torch's own on the mirror. What ``bits=fast`` computes with.

The library sums in an order that depends on the number of rows, so results may depend on the batch, and have numerics of
their own. All other operations are those of ``ops.py``'s other implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch

from .driver import view_of_card
from .host_memory import view
from .ops import Ops, Sum, Weight

Launch = Callable[[Callable[[], object]], object]
View = Callable[[int, Sequence[int], torch.dtype], torch.Tensor]  # address, shape, type
FAST = "fast"


class FastOps:
    """``Ops`` whose products a library computes (see the module).

    ``view`` makes tensors of the device's memory by address, and ``launch`` queues work.
    """

    def __init__(self, ops: Ops, view: View, launch: Launch) -> None:
        self.name = f"{FAST}-torch-{torch.__version__}-{ops.name}"
        self.dtype, self.tile_rows = ops.dtype, ops.tile_rows
        self._ops = ops
        self._view, self._launch = view, launch

    def product_bytes(self, tokens: int, width: int, outputs: int) -> int:
        return 4 * tokens * outputs

    def product(self, x: int, weight: Weight, out: int, tokens: int) -> Sum:
        def work() -> None:
            x_TW = self._view(x, (tokens, weight.width), self.dtype)
            out_TQ = self._view(out, (tokens, weight.outputs), torch.float32)
            first = 0
            for address, rows in weight.parts:
                matrix_QW = self._view(address, (rows, weight.width), self.dtype)
                out_TQ[:, first : first + rows] = _product(x_TW, matrix_QW)
                first += rows

        self._launch(work)
        return Sum(out, 1, weight.outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def fast_on_card(number: int, ops: Ops) -> Ops:
    """Return the operations of a card, with products by cuBLAS. They queue on the current stream."""

    def seen(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return view_of_card(number, address, prod(shape) * dtype.itemsize).view(dtype).view(*shape)

    return cast(Ops, FastOps(ops, seen, lambda work: work()))


def fast_on_host(ops: Ops, launch: Launch) -> Ops:
    """Return the operations of the mirror, with products by torch's own."""
    return cast(Ops, FastOps(ops, view, launch))


def _product(x_TW: torch.Tensor, matrix_QW: torch.Tensor) -> torch.Tensor:
    """Return float32 sums. A card adds up in float32 and is asked not to round them; a CPU computes in float32."""
    if x_TW.is_cuda and x_TW.dtype != torch.float32:
        return torch.mm(x_TW, matrix_QW.T, out_dtype=torch.float32)
    return torch.mm(x_TW.float(), matrix_QW.float().T)
