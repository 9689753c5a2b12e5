"""Copies of a worker's tables on the card: token ids and page slots of every row, one allocation.

The host's tables (``gpu/tables.py``) are the truth. Before a step, what differs in the step's rows travels as edits, at most
``EDITS`` at a time. Legend: R rows, M longest sequence, L layers of slots, P pages.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ..tables import Tables

EDITS = 16384


class TableCopies:
    """The content of the card's tables when all that was queued has ended, and the memory that it is in."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        self._tables = tables
        tokens_RM, slots_RLP = tables.tokens, tables.slots
        self._tokens_RM, self._slots_RLP = np.zeros_like(tokens_RM), np.zeros_like(slots_RLP)
        self.memory = torch.zeros(tokens_RM.size + slots_RLP.size, dtype=torch.int32, device=device)
        self.tokens = self.memory.data_ptr()
        self.token_stride = tokens_RM.shape[1]
        self.slots = self.tokens + 4 * tokens_RM.size
        self.row_stride, self.layer_stride = slots_RLP.shape[1] * slots_RLP.shape[2], slots_RLP.shape[2]

    def edits(self, row_N: np.ndarray, longest: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield elements of ``memory`` that differ (int64) and their values (int32), for positions below ``longest``."""
        index, value = [], []
        pages = -(-longest // self._tables.page_size)
        for row in np.unique(row_N).tolist():
            tokens, known = self._tables.tokens[row, :longest], self._tokens_RM[row, :longest]
            if (place := np.flatnonzero(tokens != known)).size:
                index.append(place + row * self.token_stride)
                value.append(tokens[place])
                known[place] = tokens[place]
            slots, held = self._tables.slots[row, :, :pages], self._slots_RLP[row, :, :pages]
            layer, page = np.nonzero(slots != held)
            if layer.size:
                first = self._tokens_RM.size + row * self.row_stride
                index.append(first + layer * self.layer_stride + page)
                value.append(slots[layer, page])
                held[layer, page] = slots[layer, page]
        if index:
            index_E, value_E = np.concatenate(index).astype(np.int64), np.concatenate(value).astype(np.int32)
            for begin in range(0, index_E.size, EDITS):
                yield index_E[begin : begin + EDITS], value_E[begin : begin + EDITS]
