"""The calls of ``cuda.bindings.driver`` for virtual memory, eight of them, and for contexts, on a card that is an account.

It refuses what the driver refuses: unknown handles, ranges that are not reserved, places that are mapped already, access to
what is not mapped, and ranges that cut a mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

GRANULE = 2 << 20


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


OK = Result.CUDA_SUCCESS
WRONG = Result.CUDA_ERROR_INVALID_VALUE
FULL = Result.CUDA_ERROR_OUT_OF_MEMORY


class FakeDriver:
    """``chunks``: how many fit into the card. ``calls`` has the name of each call, in order."""

    CUmemLocation = CUmemAllocationProp = CUmemAccessDesc = SimpleNamespace
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="read and write")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM="least")

    def __init__(self, chunks: int = 1000) -> None:
        self.calls: list[str] = []
        self.left = chunks
        self.handles: dict[int, int] = {}  # size by handle
        self.ranges: dict[int, int] = {}  # size by address
        self.mapped: dict[int, tuple[int, int]] = {}  # size and handle by address
        self.usable: set[int] = set()  # addresses of mappings with access
        self.current = 0  # context of the calling thread
        self.retained = 0  # references to primary contexts
        self._next = 1 << 30

    def cuMemGetAllocationGranularity(self, kind: Any, which: Any) -> tuple[Any, ...]:
        self.calls.append("cuMemGetAllocationGranularity")
        right = kind.type == "pinned" and kind.location.type == "device" and which == "least"
        return (OK, GRANULE) if right else (WRONG, 0)

    def cuMemCreate(self, size: int, kind: Any, flags: int) -> tuple[Any, ...]:
        self.calls.append("cuMemCreate")
        if not self.left:
            return FULL, None
        self.left -= 1
        handle = 7000 + len(self.handles)
        self.handles[handle] = size
        return OK, handle

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        self.calls.append("cuMemRelease")
        return (OK if self.handles.pop(handle, None) else WRONG,)

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        self.calls.append("cuMemAddressReserve")
        self._next += size + GRANULE
        self.ranges[self._next - size] = size
        return OK, self._next - size

    def cuMemAddressFree(self, address: int, size: int) -> tuple[Any, ...]:
        self.calls.append("cuMemAddressFree")
        busy = any(address <= place < address + size for place in self.mapped)
        return (WRONG if busy or self.ranges.pop(address, None) != size else OK,)

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> tuple[Any, ...]:
        self.calls.append("cuMemMap")
        inside = any(first <= address and address + size <= first + length for first, length in self.ranges.items())
        taken = any(address < place + length and place < address + size for place, (length, _) in self.mapped.items())
        if not inside or taken or offset or self.handles.get(handle) != size:
            return (WRONG,)
        self.mapped[address] = size, handle
        return (OK,)

    def cuMemSetAccess(self, address: int, size: int, access: Sequence[Any], count: int) -> tuple[Any, ...]:
        self.calls.append("cuMemSetAccess")
        places = self._whole(address, size)
        if places is None or count != len(access) or access[0].flags != "read and write":
            return (WRONG,)
        self.usable.update(places)
        return (OK,)

    def cuMemUnmap(self, address: int, size: int) -> tuple[Any, ...]:
        self.calls.append("cuMemUnmap")
        if (places := self._whole(address, size)) is None:
            return (WRONG,)
        for place in places:
            del self.mapped[place]
            self.usable.discard(place)
        return (OK,)

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return OK, number

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.retained += 1
        return OK, 100 + device

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.retained -= 1
        return (OK,)

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return OK, self.current

    def _whole(self, address: int, size: int) -> list[int] | None:
        """The mappings that fill a range, None if others lie there or nothing does."""
        places, at = [], address
        while at < address + size:
            if at not in self.mapped:
                return None
            places.append(at)
            at += self.mapped[at][0]
        return places if at == address + size else None
