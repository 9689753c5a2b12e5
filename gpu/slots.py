"""Slots of an arena as bytes: how both CPU back ends export and import KV pages.

A slot is contiguous there, and what lies in it depends on the numerics alone, which the lineage of a page covers. So its
bytes, padding included, are the form in which it travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class SlotBytes:
    """The slots of one arena. ``memory``: its reserved range, uint8; only slots that are named are touched."""

    def __init__(self, memory: torch.Tensor, slot_bytes: int) -> None:
        count = memory.numel() // slot_bytes
        self._slots = memory[: count * slot_bytes].view(count, slot_bytes)

    def read(self, slots: Sequence[int], memory: torch.Tensor) -> None:
        """Into ``memory`` (uint8 [slots, slot_bytes])."""
        torch.index_select(self._slots, 0, torch.tensor(slots), out=memory)

    def write(self, slots: Sequence[int], memory: torch.Tensor) -> None:
        """From ``memory`` (uint8 [slots, slot_bytes])."""
        self._slots.index_copy_(0, torch.tensor(slots), memory)
