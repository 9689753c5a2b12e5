"""KV page exchange: copies pages between an arena and the bytes that travel between workers.

Used by the executor, between sweeps. Decides nothing: the sender says which pages leave, and a plan says when arrived pages
are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..policies.model.chain import PageLayout
from ..policies.plan.sweep_plan import PageImport
from .backend import Backend
from .errors import ExecutorError

STEP = 1 << 20  # bytes of slots that are copied at once


class PageExchange:
    """Owner of the bytes of pages that arrived and that no plan has written yet."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._layouts: dict[str, PageLayout] = {}  # by arena
        self._arrived: dict[int, Any] = {}  # bytes-like, by number

    def add_layout(self, layout: PageLayout) -> None:
        self._layouts[layout.key] = layout

    def layout(self, arena: str) -> PageLayout:
        """Return the layout of an arena. Raises ExecutorError for one that does not exist."""
        if arena not in self._layouts:
            raise ExecutorError(f"arena {arena!r} does not exist (there are: {', '.join(self._layouts)}); add its layout")
        return self._layouts[arena]

    def size(self, arena: str, slots: int) -> int:
        """Return the bytes of this many slots. Raises ExecutorError for an arena that does not exist."""
        return self._backend.slot_bytes(self.layout(arena)) * slots

    def export(self, groups: Sequence[tuple[str, Sequence[int]]], memory: Any) -> None:
        """Copy the slots of each group (arena, slots) into ``memory`` (writable, bytes-like). They fill it."""
        at, flat = 0, torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
        for arena, slots in groups:
            end = at + self.size(arena, len(slots))
            self._backend.export(self._layouts[arena], slots, flat[at:end].view(len(slots), -1))
            at = end

    def move(self, arena: str, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slots of an arena to other slots."""
        together = max(1, STEP // self.size(arena, 1))
        for first in range(0, len(slots), together):
            some = slots[first : first + together]
            memory = torch.empty(len(some), self.size(arena, 1), dtype=torch.uint8)
            self._backend.export(self._layouts[arena], some, memory)
            self._backend.import_(self._layouts[arena], targets[first : first + together], memory)

    def put(self, number: int, pages: Any) -> None:
        """Accept pages from another worker (bytes-like). They are kept by reference until the plan that names ``number``."""
        self._arrived[number] = pages

    def perform(self, imports: Sequence[PageImport]) -> None:
        """Write pages that arrived. Raises ExecutorError if they did not arrive or are too short."""
        for one in imports:
            if (pages := self._arrived.pop(one.number, None)) is None:
                raise ExecutorError(f"pages {one.number} are to be written and did not come; put them first")
            flat = np.frombuffer(pages, dtype=np.uint8)
            for group in one.groups:
                slot = self.size(group.arena, 1)
                block = flat[group.offset :][: len(flat[group.offset :]) // slot * slot].reshape(-1, slot)
                if max(group.places) >= len(block):
                    raise ExecutorError(f"pages {one.number} have {len(flat)} bytes, which is less than they should have")
                memory = torch.from_numpy(block[group.places])  # a copy of these slots alone
                self._backend.import_(self._layouts[group.arena], group.slots, memory)
