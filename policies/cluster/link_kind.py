"""The kind of a tensor link: how the bytes of its messages move. It is chosen by what both ends have, the fastest first.

The sender offers kinds when it opens a link. The receiver chooses among the ones that it has, too, and tries what it chose:
what cannot be opened is taken off its list, and it chooses again. Frames, or references between nodes of one process, need
nothing to be opened, so the choice always ends.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum


class LinkKind(IntEnum):
    """The kinds of links, the fastest first. Their numbers travel."""

    REFERENCE = 0  # nothing is copied: nodes of one process
    DEVICE_SLOT = 1  # a slot in the memory of a card that both processes use
    NCCL = 2  # from card to card, of one host or of two
    PINNED_MEMORY = 3  # a slot in memory of one host that a card copies to and from by itself
    SHARED_MEMORY = 4  # a slot in memory of one host
    FRAMES = 5  # bytes in messages

    @property
    def label(self) -> str:
        """The name in views: "device-slot"."""
        return self.name.lower().replace("_", "-")


def choose_kind(offered: Collection[LinkKind], able: Collection[LinkKind]) -> LinkKind:
    """Return the fastest kind that the sender offers and the receiver is able to use; frames if there is none."""
    return min((kind for kind in LinkKind if kind in offered and kind in able), default=LinkKind.FRAMES)
