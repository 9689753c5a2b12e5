"""Byte-wise export and import of an arena's slots, shared by both CPU back ends.

A slot is contiguous there, and its content depends on the numerics alone, which the lineage of a page covers. So its bytes,
padding included, are the form in which it travels. Numpy copies them, on the calling thread. Torch would share a copy of
more than 32 KiB with threads of its own and wait for them: on a busy machine 25 ms for what takes 0.07 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class SlotBytes:
    """The slots of one arena. ``memory`` is its reserved range, uint8; only named slots are touched."""

    def __init__(self, memory: torch.Tensor, slot_bytes: int) -> None:
        count = memory.numel() // slot_bytes
        self._slots = memory[: count * slot_bytes].view(count, slot_bytes).numpy()

    def read(self, slots: Sequence[int], memory: torch.Tensor) -> None:
        """Copy slots into ``memory`` (uint8 [slots, slot_bytes])."""
        np.take(self._slots, slots, axis=0, out=memory.numpy())

    def write(self, slots: Sequence[int], memory: torch.Tensor) -> None:
        """Copy slots from ``memory`` (uint8 [slots, slot_bytes])."""
        self._slots[slots] = memory.numpy()
