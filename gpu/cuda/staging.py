"""Staging: host buffers through which bytes go to the card and come back, used in turn.

A buffer is pinned where there is a card. It is handed out again only when the work that used it last has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .streams import DeviceStream, Streams


class StagingRing:
    """``count`` host buffers of ``nbytes`` bytes at least, uint8."""

    def __init__(self, streams: Streams, count: int, nbytes: int, pinned: bool = False) -> None:
        self._streams, self._pinned = streams, pinned
        self._buffers = [self._make(nbytes) for _ in range(count)]
        self._ended = [streams.event() for _ in range(count)]
        self._next = 0

    @contextmanager
    def buffer(self, stream: DeviceStream, nbytes: int) -> Iterator[torch.Tensor]:
        """Yield a buffer of ``nbytes`` bytes. Work that uses it is launched on ``stream`` within the context."""
        place = self._next
        self._next = (place + 1) % len(self._buffers)
        self._ended[place].wait()
        if self._buffers[place].numel() < nbytes:
            self._buffers[place] = self._make(nbytes)
        self._streams.poison(self._buffers[place])
        yield self._buffers[place][:nbytes]
        self._ended[place].record(stream)

    def _make(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)
