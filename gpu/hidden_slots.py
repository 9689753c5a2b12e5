"""Slots of hidden states in an arena, shared by both CPU back ends: positions of a page, one after the other, then padding.

Numpy copies them on the calling thread, for the reason given in ``slots.py``. The bytes are those of the hidden states, so
that what is read is bit for bit what was written.
Legend: S slots, P positions of a page, D hidden width, T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..policies.model.chain import HiddenLayout
from ..policies.plan.sweep_plan import NO_SLOT
from .backend import Batch
from .tables import Tables


class HiddenSlots:
    """The slots of one arena. ``memory`` is its reserved range, uint8; only named slots are touched."""

    def __init__(self, memory: torch.Tensor, slot_bytes: int, layout: HiddenLayout) -> None:
        self._number = np.dtype(np.uint32 if layout.dtype == "float32" else np.uint16)  # holds a number's bits
        size, self._page = self._number.itemsize, layout.page_size
        flat = memory[: memory.numel() // slot_bytes * slot_bytes].numpy().view(self._number)
        shape = memory.numel() // slot_bytes, layout.page_size, layout.width
        self._states_SPD = np.lib.stride_tricks.as_strided(flat, shape, (slot_bytes, layout.width * size, size))

    def put(self, tables: Tables, column: int, batch: Batch) -> None:
        """Write the hidden states of a batch, except for pages without a slot."""
        slot_T, place_T = self._places(tables, column, batch)
        bits_TD = self._bits(batch.hidden_TD)
        if (there_T := slot_T != NO_SLOT).all():
            self._states_SPD[slot_T, place_T] = bits_TD
        else:
            self._states_SPD[slot_T[there_T], place_T[there_T]] = bits_TD[there_T]

    def take(self, tables: Tables, column: int, batch: Batch) -> None:
        """Overwrite the hidden states of a batch with the ones written for its positions."""
        slot_T, place_T = self._places(tables, column, batch)
        self._bits(batch.hidden_TD)[:] = self._states_SPD[slot_T, place_T]

    def _bits(self, hidden_TD: torch.Tensor) -> Any:
        return hidden_TD.view(torch.uint8).numpy().view(self._number)

    def _places(self, tables: Tables, column: int, batch: Batch) -> tuple[Any, Any]:
        """Return the slot of each token, and its place there."""
        before_N = np.cumsum(batch.count_N) - batch.count_N
        position_T = np.arange(int(batch.count_N.sum())) + np.repeat(batch.start_N - before_N, batch.count_N)
        row_T = np.repeat(batch.row_N, batch.count_N)
        return tables.slots[row_T, column, position_T // self._page], position_T % self._page
