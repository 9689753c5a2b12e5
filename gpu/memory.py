"""Arenas of a CPU: reserved virtual ranges whose chunks are committed and given back, so that tensors in them stay in place.

On a CPU a reserved page costs nothing until it is written, so committing only records which chunk of the pool lies where;
giving back returns the pages to the operating system. What a committed chunk holds is undefined: here zeros, on a device
that maps the pool's chunks the bytes of their last use. ``policies/`` decides which chunk belongs to which arena: an arena
obeys and checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import torch

from .device import Arena
from .errors import BackendError, ExecutorError

MAP_NORESERVE = 0x4000  # a Linux constant that the mmap module does not name
PROT_NONE, PROT_READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
POISON = 0xFF  # a byte of which every float is not a number


class HostArena(Arena):
    """``nbytes`` of address space in chunks of ``chunk`` bytes, nothing committed at first.

    With ``protect`` (in tests) a page that is not committed cannot be touched: a stale view faults instead of reading zeros.
    A chunk that was just committed holds no numbers, so that code that counts on zeros gives wrong results.
    Raises ``BackendError`` if the range cannot be reserved, ``ExecutorError`` if a chunk is committed where another lies or
    given back from where it does not lie.
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
        # of the pool's chunk at each place, the id + 1; 0: none. The system gives zeros page by page, when they are used
        self._ids = np.zeros(self.chunks, dtype=np.int64)
        self.committed = 0  # chunks in use
        if protect:
            self._set_protection(0, self.chunks, PROT_NONE)

    def commit(self, first: int, ids: Sequence[int]) -> None:
        """Make the chunks from ``first`` on usable, backed by the pool's chunks ``ids``. What they hold is undefined."""
        self._check(first, len(ids))
        if self._ids[first : first + len(ids)].any():
            raise ExecutorError(f"arena {self.name}: of {len(ids)} chunks from {first} on some would be committed twice")
        if self._protect:
            self._set_protection(first, len(ids), PROT_READ_WRITE)
            self.memory.numpy()[first * self.chunk : (first + len(ids)) * self.chunk] = POISON
        self._ids[first : first + len(ids)] = np.asarray(ids, dtype=np.int64) + 1
        self.committed += len(ids)

    def give_back(self, first: int, ids: Sequence[int]) -> None:
        """Return the memory of the pool's chunks ``ids``, which lie from ``first`` on, to the operating system.

        The range stays reserved.
        """
        self._check(first, len(ids))
        found = self._ids[first : first + len(ids)] - 1
        if (found < 0).any():
            raise ExecutorError(
                f"arena {self.name}: of {len(ids)} chunks from {first} on some would be given back without being committed"
            )
        if (other := np.flatnonzero(found != np.asarray(ids))).size:
            place = int(other[0])
            raise ExecutorError(
                f"arena {self.name}: chunk {ids[place]} is given back from place {first + place}, where chunk "
                f"{found[place]} lies: a plan is wrong"
            )
        self._map.madvise(mmap.MADV_DONTNEED, first * self.chunk, len(ids) * self.chunk)
        if self._protect:
            self._set_protection(first, len(ids), PROT_NONE)
        self._ids[first : first + len(ids)] = 0
        self.committed -= len(ids)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return uint8 [nbytes] from byte ``offset`` on, without a copy. All of it must be committed."""
        first, last = offset // self.chunk, -(-(offset + nbytes) // self.chunk)
        if offset < 0 or last > self.chunks or not self._ids[first:last].all():
            raise ExecutorError(
                f"bytes {offset} to {offset + nbytes} of arena {self.name} are not committed; commit their chunks first"
            )
        return self.memory[offset : offset + nbytes]

    def _check(self, first: int, count: int) -> None:
        if first < 0 or first + count > self.chunks:
            raise ExecutorError(
                f"arena {self.name} has {self.chunks} chunks; {count} from {first} on are outside: a plan is wrong"
            )

    def _set_protection(self, first: int, count: int, protection: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(self.memory.data_ptr() + first * self.chunk)
        if libc.mprotect(address, ctypes.c_size_t(count * self.chunk), protection):
            raise ExecutorError(f"arena {self.name}: mprotect failed with error {ctypes.get_errno()}")
