"""What was read of blocks that come and go, so that one that comes again costs no file but its tensors."""

from __future__ import annotations

from collections import OrderedDict

from blockwright.actors.worker.messages import LoadBlock
from blockwright.gpu.model.config import ComponentSpec

KEPT = 256  # blocks; some 100 KB each


class KnownSpecs:
    """The last blocks that were read, by holder and place, and which of them the device has composed before."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], tuple[LoadBlock, list[ComponentSpec]]] = OrderedDict()
        self._proven: set[tuple[str, int]] = set()

    def find(self, block: LoadBlock) -> list[ComponentSpec] | None:
        """Those of an equal block."""
        key = block.holder, block.first
        if key not in self._known or self._known[key][0] != block:
            return None
        self._known.move_to_end(key)
        return self._known[key][1]

    def keep(self, block: LoadBlock, specs: list[ComponentSpec]) -> None:
        key = block.holder, block.first
        self._known[key] = block, specs
        self._proven.discard(key)
        if len(self._known) > KEPT:
            oldest, _ = self._known.popitem(last=False)
            self._proven.discard(oldest)

    def prove(self, block: LoadBlock) -> None:
        """The device can compose it."""
        self._proven.add((block.holder, block.first))

    def proven(self, block: LoadBlock) -> bool:
        return (block.holder, block.first) in self._proven
