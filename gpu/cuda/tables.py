"""Tables of a worker on the card: token ids and page slots of every row, one allocation.

The card's tokens are the truth: drawn ones are written there, and the host learns of them later. Its own tables
(``gpu/tables.py``) have what plans wrote, by which plans are checked. Legend: R rows, M longest sequence, L layers of slots,
P pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...policies.plan.sweep_plan import Edit, SetPages, WriteTokens
from ..tables import Ints, Tables


class CardTables:
    """The memory, with the strides of its arrays. It begins with what the host's tables hold.

    It replaces smaller ones, ``former``, whose content is copied; nothing may be queued then.
    """

    def __init__(self, tables: Tables, device: torch.device, former: CardTables | None = None) -> None:
        self._token_shape, self._slot_shape = tables.tokens.shape, tables.slots.shape
        rows, length = self._token_shape
        _, layers, pages = self._slot_shape
        flat = np.concatenate([tables.tokens.reshape(-1), tables.slots.reshape(-1)])
        self.memory = torch.from_numpy(flat).to(device)
        self.tokens = self.memory.data_ptr()
        self.token_stride = length
        self.slots = self.tokens + 4 * rows * length
        self.row_stride, self.layer_stride = layers * pages, pages
        if former is not None:
            for old, new in zip(former._arrays(), self._arrays(), strict=True):
                new[tuple(slice(size) for size in old.shape)] = old

    def _arrays(self) -> tuple[torch.Tensor, torch.Tensor]:
        count = self._token_shape[0] * self._token_shape[1]
        return self.memory[:count].view(self._token_shape), self.memory[count:].view(self._slot_shape)

    def known(self, row: int, count: int) -> torch.Tensor:
        """Return a row's first tokens, as bytes on the card."""
        return self._arrays()[0][row, :count].view(torch.uint8)

    def edits(self, edits: Sequence[Edit]) -> tuple[Ints, Ints]:
        """Return elements of ``memory`` (int64), each once, and what is to be written there (int32)."""
        index, value = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
        slots = self._token_shape[0] * self.token_stride
        for edit in edits:
            if isinstance(edit, WriteTokens):
                first = edit.row * self.token_stride + edit.position
                index.append(np.arange(first, first + len(edit.tokens)))
                value.append(np.asarray(edit.tokens, dtype=np.int32))
            elif isinstance(edit, SetPages):
                first = slots + edit.row * self.row_stride + edit.layer * self.layer_stride + edit.page
                index.append(first + self.layer_stride * np.arange(len(edit.slots)))
                value.append(np.asarray(edit.slots, dtype=np.int32))
        index_E, value_E = np.concatenate(index), np.concatenate(value)
        if index_E.size < 2:
            return index_E, value_E
        last_E = index_E.size - 1 - np.unique(index_E[::-1], return_index=True)[1]  # of equal ones the last edit counts
        return index_E[last_E], value_E[last_E]
