"""Scratch of the CUDA back end: buffers by name, allocated before sweeps and never given back during one."""

from __future__ import annotations

from collections.abc import Callable

import torch

NEW = 0xFF  # every byte of a new buffer: not-a-number, so that code that counts on zeros fails


class Scratch:
    """Buffers on ``device``. ``settle`` waits until no queued work uses the one that is replaced by a larger one."""

    def __init__(self, device: torch.device, settle: Callable[[], None]) -> None:
        self._device, self._settle = device, settle
        self._buffers: dict[str, torch.Tensor] = {}

    def need(self, name: str, nbytes: int) -> None:
        """Have at least ``nbytes`` bytes under this name. Not called on the path of a sweep."""
        if name not in self._buffers or self._buffers[name].numel() < nbytes:
            self._settle()
            self._buffers[name] = torch.full((max(nbytes, 1),), NEW, dtype=torch.uint8, device=self._device)
            self._settle()  # it was written by another stream than the one of sweeps

    def tensor(self, name: str, nbytes: int) -> torch.Tensor:
        """Return the first bytes of a buffer, uint8."""
        return self._buffers[name][:nbytes]

    def __getitem__(self, name: str) -> int:
        """Return the address of a buffer."""
        return self._buffers[name].data_ptr()

    @property
    def nbytes(self) -> int:
        return sum(buffer.numel() for buffer in self._buffers.values())
