"""Hidden states of a sweep: one buffer per width. A batch row's tokens are consecutive, rows are in the order of the plan.

A step over rows that are not adjacent works on gathered copies that are scattered back. Owns the buffers; knows no plan.
Legend: T tokens, N batch rows, D hidden width; offsets and counts are in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .errors import ExecutorError


class HiddenStates:
    """Buffers [max_tokens, D] in the model's type, and scratch of the same size."""

    def __init__(self, max_tokens: int, dtype: torch.dtype) -> None:
        self.max_tokens = max_tokens
        self.dtype = dtype
        self._buffers: dict[int, torch.Tensor] = {}
        self._scratch: dict[int, torch.Tensor] = {}

    def add_width(self, width: int) -> None:
        """Allocate buffers for hidden states of this width. Not called on the path of a sweep."""
        if width not in self._buffers:
            self._buffers[width] = torch.zeros(self.max_tokens, width, dtype=self.dtype)
            self._scratch[width] = torch.zeros(self.max_tokens, width, dtype=self.dtype)

    @contextmanager
    def rows(self, width: int, offset_N: np.ndarray, count_N: np.ndarray) -> Iterator[torch.Tensor]:
        """Yield the hidden states [T, D] of these rows, to be read and overwritten within the context."""
        buffer_TD = self._buffer(width)
        tokens = int(count_N.sum())
        if np.array_equal(offset_N[1:], offset_N[:-1] + count_N[:-1]):
            first = int(offset_N[0]) if offset_N.size else 0
            yield buffer_TD[first : first + tokens]
            return
        index_T = token_index(offset_N, count_N)
        part_TD = self._scratch[width][:tokens]
        torch.index_select(buffer_TD, 0, index_T, out=part_TD)
        yield part_TD
        buffer_TD.index_copy_(0, index_T, part_TD)

    def pick(self, width: int, token_N: np.ndarray) -> torch.Tensor:
        """Return the hidden states [N, D] of single tokens. They are valid until the next call."""
        part_ND = self._scratch_of(width)[: token_N.size]
        torch.index_select(self._buffer(width), 0, torch.from_numpy(token_N.astype(np.int64)), out=part_ND)
        return part_ND

    def read(self, width: int, offset_N: np.ndarray, count_N: np.ndarray) -> memoryview:
        """Return a copy of these rows' hidden states, as bytes."""
        part_TD = self._buffer(width)[token_index(offset_N, count_N)]
        return memoryview(part_TD.view(torch.uint8).numpy().tobytes())

    def write(self, width: int, offset_N: np.ndarray, count_N: np.ndarray, hidden: Any) -> None:
        """Set these rows' hidden states from bytes."""
        self.add_width(width)
        with self.rows(width, offset_N, count_N) as part_TD:
            target = part_TD.view(torch.uint8).numpy()
            np.copyto(target, np.frombuffer(hidden, dtype=np.uint8).reshape(target.shape))

    def _buffer(self, width: int) -> torch.Tensor:
        if width not in self._buffers:
            raise ExecutorError(f"no hidden states of width {width} here (there are: {sorted(self._buffers)})")
        return self._buffers[width]

    def _scratch_of(self, width: int) -> torch.Tensor:
        self._buffer(width)
        return self._scratch[width]


def token_index(offset_N: np.ndarray, count_N: np.ndarray) -> torch.Tensor:
    """Return int64 [T]: the buffer rows of all tokens of these batch rows."""
    before_N = np.cumsum(count_N) - count_N
    return torch.from_numpy(np.arange(int(count_N.sum())) + np.repeat(offset_N - before_N, count_N))
