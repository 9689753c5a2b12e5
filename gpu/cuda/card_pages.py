"""Pages of a card: slots move within its memory, and wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..exchange import PageExchange
from .backend import CudaBackend


class CardPages(PageExchange):
    """Pages of one card (``Pages`` of ``gpu/device.py``)."""

    def __init__(self, backend: CudaBackend) -> None:
        super().__init__(backend)
        self._card = backend

    def move(self, arena: str, slots: Sequence[int], targets: Sequence[int]) -> None:
        self._card.move(self.layout(arena), slots, targets)
