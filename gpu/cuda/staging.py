"""Staging: host buffers through which bytes go to the card and come back, used in turn, and the copies themselves.

A buffer is pinned where there is a card. It is handed out again only when the work that used it last has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from .scratch import Scratch
from .streams import DeviceStream, Streams

RING = 4  # buffers of each direction
STAGED = 64 << 10  # bytes of a buffer at first


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


class Transfers:
    """Copies between the host and buffers of scratch: uploads on ``compute``, what is fetched on the stream ``copies``."""

    def __init__(self, streams: Streams, compute: DeviceStream, scratch: Scratch, pinned: bool) -> None:
        self._streams, self._compute = streams, compute
        self._scratch = scratch
        self.copies = streams.stream()
        self._uploads = StagingRing(streams, RING, STAGED, pinned)
        self._results = StagingRing(streams, RING, STAGED, pinned)

    def send(self, name: str, array: np.ndarray) -> None:
        """Queue a copy of an array to the beginning of a buffer of the scratch."""
        self.upload(name, array.nbytes, lambda host_B: np.copyto(host_B, array.reshape(-1).view(np.uint8)))

    def upload(self, name: str, nbytes: int, write: Callable[[np.ndarray], None]) -> torch.Tensor:
        """Queue a copy of what ``write`` writes into host memory, uint8 [nbytes], to a buffer of scratch.

        Return its place there.
        """
        self._scratch.need(name, nbytes)
        target = self._scratch.tensor(name, nbytes)
        with self._uploads.buffer(self._compute, nbytes) as buffer:
            write(buffer.numpy())
            self._compute.launch(lambda: target.copy_(buffer, non_blocking=True))
        return target

    def fetch(self, sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Wait for what was queued, and return what it left in memory of the card, uint8 each, on the host.

        It is valid until a few further calls.
        """
        begins = np.cumsum([0, *(source.numel() for source in sources)]).tolist()
        ready, ended = self._streams.event(), self._streams.event()
        ready.record(self._compute)
        self.copies.wait(ready)
        with self._results.buffer(self.copies, begins[-1]) as buffer:
            parts = [buffer[first:last] for first, last in pairwise(begins)]
            for part, source in zip(parts, sources, strict=True):
                self.copies.launch(partial(part.copy_, source, non_blocking=True))
        ended.record(self.copies)
        ended.wait()
        return parts
