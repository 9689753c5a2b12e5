"""Arenas: reserved virtual ranges whose chunks are committed and given back, so that tensors in them stay in place.

On a CPU a reserved page costs nothing until it is written, so committing only counts; giving back returns the pages to the
operating system. ``policies/`` decides which chunk belongs to which arena: an arena obeys and checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence

import torch

from .errors import BackendError, ExecutorError

MAP_NORESERVE = 0x4000  # a Linux constant that the mmap module does not name
PROT_NONE, PROT_READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE


class Arena:
    """``nbytes`` of address space in chunks of ``chunk`` bytes, nothing committed at first.

    With ``protect`` (in tests) a page that is not committed cannot be touched: a stale view faults instead of reading zeros.
    Raises ``BackendError`` if the range cannot be reserved, ``ExecutorError`` if a chunk is committed twice or given back
    without being committed.
    """

    def __init__(self, name: str, nbytes: int, chunk: int, protect: bool = False) -> None:
        if chunk % mmap.PAGESIZE or chunk <= 0:
            raise ExecutorError(f"chunks of {chunk} bytes are no multiple of the page size {mmap.PAGESIZE}")
        self.name = name
        self.chunk = chunk
        self.chunks = max(1, nbytes // chunk)
        self.nbytes = self.chunks * chunk
        self._protect = protect
        try:
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        except OSError as error:
            raise BackendError(
                f"{self.nbytes} bytes of address space for arena {name} cannot be reserved ({error.strerror}); raise the "
                "limit (ulimit -v unlimited) or give workers less memory (--set memory=...)"
            ) from None
        # Huge pages would make the kernel commit 2 MiB where one chunk was requested.
        with contextlib.suppress(OSError):  # a kernel without huge pages does not know this advice
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)  # [nbytes]; keeps the mapping alive
        self._committed = bytearray(self.chunks)
        if protect:
            self._set_protection(0, self.chunks, PROT_NONE)

    @property
    def committed(self) -> int:
        """The number of chunks in use."""
        return sum(self._committed)

    def commit(self, first: int, ids: Sequence[int]) -> None:
        """Make the chunks from ``first`` on usable, one for each id of the pool."""
        count = len(ids)
        self._check(first, count, 0)
        if self._protect:
            self._set_protection(first, count, PROT_READ_WRITE)
        self._committed[first : first + count] = b"\1" * count

    def give_back(self, first: int, ids: Sequence[int]) -> None:
        """Return the memory of the chunks from ``first`` on to the operating system; the range stays reserved."""
        count = len(ids)
        self._check(first, count, 1)
        self._map.madvise(mmap.MADV_DONTNEED, first * self.chunk, count * self.chunk)
        if self._protect:
            self._set_protection(first, count, PROT_NONE)
        self._committed[first : first + count] = bytes(count)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return uint8 [nbytes] from byte ``offset`` on, without a copy. All of it must be committed."""
        first, last = offset // self.chunk, -(-(offset + nbytes) // self.chunk)
        if offset < 0 or last > self.chunks or not all(self._committed[first:last]):
            raise ExecutorError(
                f"bytes {offset} to {offset + nbytes} of arena {self.name} are not committed; commit their chunks first"
            )
        return self.memory[offset : offset + nbytes]

    def _check(self, first: int, count: int, state: int) -> None:
        if first < 0 or count < 0 or first + count > self.chunks:
            raise ExecutorError(
                f"arena {self.name} has {self.chunks} chunks; {count} from {first} on are outside: a plan is wrong"
            )
        if any(held != state for held in self._committed[first : first + count]):
            what = "given back without being committed" if state else "committed twice"
            raise ExecutorError(f"arena {self.name}: of {count} chunks from {first} on some would be {what}")

    def _set_protection(self, first: int, count: int, protection: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(self.memory.data_ptr() + first * self.chunk)
        if libc.mprotect(address, ctypes.c_size_t(count * self.chunk), protection):
            raise ExecutorError(f"arena {self.name}: mprotect failed with error {ctypes.get_errno()}")
