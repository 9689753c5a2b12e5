"""Virtual memory of a card by the CUDA driver: eight calls of cuda-bindings, which is imported when memory is opened.

A chunk is created when it is first mapped and released at the end, so that afterwards memory only moves. Access is set once
for each range that is mapped, and a range is unmapped by one call. The thread that calls must have the card's context.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import BackendError
from .memory import ChunkMemory, nothing_queued

MISSING = "the CUDA back end needs cuda-bindings, which is not installed; run: pip install 'blockwright[gpu]'"


class CudaMemory(ChunkMemory):
    """``ChunkMemory`` on card ``device`` (see the module). ``driver`` is ``cuda.bindings.driver``, or a test's."""

    def __init__(
        self,
        chunk: int,
        chunks: int,
        device: int = 0,
        queued: Callable[[], int] = nothing_queued,
        driver: Any = None,
    ) -> None:
        super().__init__(chunk, chunks, queued)
        self._driver = d = driver or _driver()
        self._device = device
        location = d.CUmemLocation()
        location.type, location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
        self._kind = d.CUmemAllocationProp()
        self._kind.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._kind.location = location
        self._access = d.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        least = d.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granule = int(self._ok("cuMemGetAllocationGranularity", self._kind, least))
        if chunk % granule:
            raise BackendError(f"chunks of {chunk} bytes are no multiple of the card's {granule}; give a multiple")
        self._handles: dict[int, Any] = {}  # of chunks that were mapped before, by id

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        return view_of_card(self._device, address, nbytes, self)

    def close(self) -> None:
        for address, count in self._ranges.items():
            for i in range(count):
                if self._id_at.pop(address + i * self.chunk, None) is not None:
                    self._ok("cuMemUnmap", address + i * self.chunk, self.chunk)
            self._ok("cuMemAddressFree", address, count * self.chunk)
        for handle in self._handles.values():
            self._ok("cuMemRelease", handle)
        self._ranges.clear()
        self._handles.clear()
        self._mapped.clear()

    def _reserve(self, count: int) -> int:
        return int(self._ok("cuMemAddressReserve", count * self.chunk, 0, 0, 0))

    def _map(self, address: int, ids: Sequence[int]) -> None:
        mapped = 0
        try:
            for id in ids:
                if id not in self._handles:
                    self._handles[id] = self._ok("cuMemCreate", self.chunk, self._kind, 0)
                self._ok("cuMemMap", address + mapped * self.chunk, self.chunk, 0, self._handles[id], 0)
                mapped += 1
            self._ok("cuMemSetAccess", address, len(ids) * self.chunk, [self._access], 1)
        except BackendError:
            if mapped:
                self._ok("cuMemUnmap", address, mapped * self.chunk)
            raise

    def _unmap(self, address: int, count: int) -> None:
        self._ok("cuMemUnmap", address, count * self.chunk)

    def _ok(self, call: str, *arguments: Any) -> Any:
        return _value(self._driver, call, *arguments)


def view_of_card(device: int, address: int, nbytes: int, owner: object = None) -> torch.Tensor:
    """Return a card's memory at ``address``, uint8 [nbytes]. It stays valid as long as ``owner`` keeps it."""
    cupy = importlib.import_module("cupy")
    # Naming the device: guessing it would ask the driver about memory that may not be mapped.
    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, device)
    array = cupy.ndarray((nbytes,), dtype=cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    found: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    return found


def enter_card(device: int, driver: Any = None) -> None:
    """Give the calling thread the card's primary context, the one that torch uses; raise BackendError if it has none.

    A new thread has no context: calls of the driver would fail there, or make one on card 0.
    """
    d = driver or _driver()
    cuda: Any = torch.cuda  # its functions have no annotations
    try:
        cuda.init()
        torch.cuda.set_device(device)
        torch.cuda.synchronize(device)  # makes the context
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
        raise BackendError(f"card {device} cannot be used ({_first_line(error)}); see blockwright doctor") from None
    card = _value(d, "cuDeviceGet", device)
    primary = _value(d, "cuDevicePrimaryCtxRetain", card)
    try:
        if int(_value(d, "cuCtxGetCurrent")) != int(primary):
            raise BackendError(f"this thread's CUDA context is not the one of card {device}: the caller's order is wrong")
    finally:
        _value(d, "cuDevicePrimaryCtxRelease", card)


def _value(driver: Any, call: str, *arguments: Any) -> Any:
    """Call the driver. Return its value, if it has one."""
    error, *values = getattr(driver, call)(*arguments)
    if int(error):
        remedy = "; give workers less memory (--set memory=...)" if "OUT_OF_MEMORY" in error.name else ""
        raise BackendError(f"{call} of the CUDA driver failed with {error.name}{remedy}")
    return values[0] if values else None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _driver() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError:
        raise BackendError(MISSING) from None
