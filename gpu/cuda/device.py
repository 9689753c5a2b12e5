"""Device of the CUDA back ends: arenas over a pool of chunks that move between them, and staging to fill parameters.

Tokens are drawn on the host, from logits that the back end has brought there, and hidden states of a sweep lie on the host
between two steps.
"""

from __future__ import annotations

from ..device import Arena, DeviceSizes
from ..host_device import HostDevice
from .arena import MappedArena
from .backend import CudaBackend

SLICE = 8 << 20  # bytes of parameters that are packed or copied in one step, between two sweeps


class CudaDevice(HostDevice):
    """Device with chunks of its own (see the module and ``gpu/device.py``)."""

    def __init__(self, backend: CudaBackend, sizes: DeviceSizes) -> None:
        super().__init__(backend, sizes)
        self.slice_bytes = SLICE
        self._cuda = backend
        self._memory = backend.open_memory(sizes.chunk, sizes.budget // sizes.chunk)

    def enter(self) -> None:
        self._cuda.enter()

    def check(self) -> None:
        self._cuda.check()

    def arena(self, name: str, nbytes: int) -> Arena:
        return MappedArena(self._memory, name, nbytes)
