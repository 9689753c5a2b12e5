"""Departures of a card: hidden states that leave for another worker stay in its memory, where a link may copy them from.

A departure has a buffer as long as the departure is held: a link holds it until its receiver has everything. A plan
that finds no buffer leaves its hidden states among its results, which come to the host.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

from .backend import CudaBackend

BUFFERS = 4  # two plans that are open, and two whose departures are being sent


class LentBuffer:
    """Hidden states that leave, uint8 on the card (``CardBytes``)."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.nbytes = memory.nbytes
        self._memory = memory

    @property
    def address(self) -> int:
        return self._memory.data_ptr()

    def copy_to(self, memory: Any) -> None:
        torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).copy_(self._memory)


class Departures:
    """The buffers of one device, of equal size; they are made when something leaves for the first time."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._free: deque[torch.Tensor] = deque()  # appended to by any thread
        self._size = 0  # bytes of a buffer

    @property
    def nbytes(self) -> int:
        """The card's memory that buffers take."""
        return BUFFERS * self._size

    def take(self, nbytes: int, most: int) -> LentBuffer | None:
        """Return a departure of ``nbytes`` bytes, of at most ``most`` for any plan; None while all buffers are lent."""
        if most > self._size:
            self._size = most
            self._free.clear()
            self._free.extend(self._make() for _ in range(BUFFERS))
        if not self._free:
            return None
        buffer = self._free.popleft()
        found = LentBuffer(buffer[:nbytes])
        weakref.finalize(found, self._give_back, buffer).atexit = False
        return found

    def _give_back(self, buffer: torch.Tensor) -> None:
        if buffer.nbytes == self._size:
            self._free.append(buffer)

    def _make(self) -> torch.Tensor:
        return torch.empty(self._size, dtype=torch.uint8, device=self._backend.device)
