"""Scratch of the CUDA back end: buffers by name, allocated before sweeps and never given back during one."""

from __future__ import annotations

import torch

from .streams import Streams

NEW = 0xFF  # every byte of a new buffer: not-a-number, so that code that counts on zeros fails


PASSING = ("plan", "result", "edit")  # names of buffers that plans take in turn begin so


class Scratch:
    """Buffers on ``device``. Before one is replaced by a larger one, nothing is queued that uses it.

    ``generation`` changes whenever a buffer that is not passing was allocated, so that addresses may be stale.
    """

    def __init__(self, device: torch.device, streams: Streams) -> None:
        self._device, self._streams = device, streams
        self._buffers: dict[str, torch.Tensor] = {}
        self.generation = 0

    def need(self, name: str, nbytes: int) -> None:
        """Have at least ``nbytes`` bytes under this name. On the path of a sweep only what grows once."""
        if name not in self._buffers or self._buffers[name].numel() < nbytes:
            self._streams.settle()
            if name in self._buffers:
                self._streams.retire(self._buffers[name])
            self._buffers[name] = torch.full((max(nbytes, 1),), NEW, dtype=torch.uint8, device=self._device)
            self._streams.settle()  # it was written by another stream than the one of sweeps
            self.generation += not name.startswith(PASSING)

    def tensor(self, name: str, nbytes: int, first: int = 0) -> torch.Tensor:
        """Return bytes of a buffer, uint8, from ``first`` on."""
        return self._buffers[name][first : first + nbytes]

    def __getitem__(self, name: str) -> int:
        """Return the address of a buffer."""
        return self._buffers[name].data_ptr()

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def ranges(self) -> list[tuple[int, int]]:
        """Return address and bytes of each buffer that is not passing."""
        kept = [memory for name, memory in self._buffers.items() if not name.startswith(PASSING)]
        return [(memory.data_ptr(), memory.numel()) for memory in kept]

    @property
    def nbytes(self) -> int:
        return sum(buffer.numel() for buffer in self._buffers.values())
