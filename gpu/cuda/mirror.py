"""Mirror of a card's virtual memory on the host: chunks are parts of a memory file, mapped by ``mmap``.

For tests of the CUDA back end without a card. It keeps what bugs come of: old bytes stay in a chunk that moves, a new chunk
is not-a-number everywhere, and touching what is not mapped ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from ..errors import BackendError, ExecutorError
from .memory import ChunkMemory, nothing_queued

NONE, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
FIXED, NORESERVE = 0x10, 0x4000  # Linux constants that the mmap module does not name
EMPTY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
NEW = 0xFF  # every byte of a new chunk: not-a-number in both types, -1 as an integer


class MirrorMemory(ChunkMemory):
    """``ChunkMemory`` by a memory file (see the module)."""

    def __init__(self, chunk: int, chunks: int, queued: Callable[[], int] = nothing_queued) -> None:
        if chunk % mmap.PAGESIZE or chunk <= 0:
            raise ExecutorError(f"chunks of {chunk} bytes are no multiple of the page size {mmap.PAGESIZE}")
        super().__init__(chunk, chunks, queued)
        self._file = os.memfd_create("blockwright-mirror")
        os.ftruncate(self._file, chunk * chunks)
        self._made: set[int] = set()  # chunks that were mapped before
        self._held: dict[int, int] = {}  # bytes of each reserved range, by address
        self._close = weakref.finalize(self, _give_back, self._file, self._held)

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        kind: Any = type("MirrorRange", (ctypes.Array,), {"_type_": ctypes.c_uint8, "_length_": nbytes})
        found: Any = kind.from_address(address)
        found.memory = self  # kept alive by the tensor
        return torch.frombuffer(found, dtype=torch.uint8)

    def close(self) -> None:
        self._close()

    def _reserve(self, count: int) -> int:
        address = _mmap(None, count * self.chunk, NONE, EMPTY, -1, 0)
        self._held[address] = count * self.chunk
        return address

    def _map(self, address: int, ids: Sequence[int]) -> None:
        for i, id in enumerate(ids):
            place = address + i * self.chunk
            _mmap(place, self.chunk, READ_WRITE, mmap.MAP_SHARED | FIXED, self._file, id * self.chunk)
            if id not in self._made:
                ctypes.memset(place, NEW, self.chunk)
        self._made.update(ids)

    def _unmap(self, address: int, count: int) -> None:
        _mmap(address, count * self.chunk, NONE, EMPTY | FIXED, -1, 0)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _mmap(address: int | None, length: int, protection: int, flags: int, file: int, offset: int) -> int:
    found: int | None = _libc().mmap(address, length, protection, flags, file, offset)
    if found in (None, ctypes.c_void_p(-1).value):
        why = os.strerror(ctypes.get_errno())
        raise BackendError(
            f"{length} bytes of address space cannot be mapped ({why}); raise the limit (ulimit -v unlimited, "
            "vm.max_map_count) or give workers less memory (--set memory=...)"
        )
    assert found is not None
    return found


def _give_back(file: int, held: dict[int, int]) -> None:
    for address, nbytes in held.items():
        _libc().munmap(address, nbytes)
    held.clear()
    with contextlib.suppress(OSError):
        os.close(file)
