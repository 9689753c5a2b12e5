"""Arena over chunks of a pool: a reserved range into which the chunks that a plan names are mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ExecutorError
from .memory import ChunkMemory


class MappedArena:
    """``nbytes`` of address space of ``memory``, nothing mapped at first. Chunks hold what they held before."""

    def __init__(self, memory: ChunkMemory, name: str, nbytes: int) -> None:
        self.name = name
        self.chunk = memory.chunk
        self.chunks = max(1, nbytes // memory.chunk)
        self.nbytes = self.chunks * memory.chunk
        self.committed = 0  # chunks in use
        self._memory = memory
        self._address = memory.reserve(self.chunks)
        self.memory = memory.view(self._address, self.nbytes)

    def commit(self, first: int, ids: Sequence[int]) -> None:
        """Map the pool's chunks ``ids`` from chunk ``first`` on."""
        self._check(first, len(ids))
        self._memory.map(self._address + first * self.chunk, ids)
        self.committed += len(ids)

    def give_back(self, first: int, ids: Sequence[int]) -> None:
        """Unmap the chunks ``ids``, which lie from chunk ``first`` on."""
        self._check(first, len(ids))
        address = self._address + first * self.chunk
        there = [self._memory.id_at(address + i * self.chunk) for i in range(len(ids))]
        if there != list(ids):
            raise ExecutorError(
                f"arena {self.name} has chunks {there[:4]} from {first} on, not {list(ids)[:4]}: a plan is wrong"
            )
        self._memory.unmap(address, len(ids))
        self.committed -= len(ids)

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return uint8 [nbytes] from byte ``offset`` on. All of it must be mapped."""
        first, last = offset // self.chunk, -(-(offset + nbytes) // self.chunk)
        places = (self._address + i * self.chunk for i in range(first, last))
        if offset < 0 or last > self.chunks or any(self._memory.id_at(place) is None for place in places):
            raise ExecutorError(
                f"bytes {offset} to {offset + nbytes} of arena {self.name} are not committed; commit their chunks first"
            )
        return self.memory[offset : offset + nbytes]

    @contextmanager
    def window(self, offset: int, nbytes: int) -> Iterator[torch.Tensor]:
        """Yield host memory, uint8 [nbytes], that is filled within the context and copied to byte ``offset`` at its end."""
        target = self.view(offset, nbytes)
        staged = torch.empty(nbytes, dtype=torch.uint8, pin_memory=target.is_cuda)
        yield staged
        target.copy_(staged)

    def read(self, offset: int, memory: NDArray[np.uint8]) -> None:
        """Copy the bytes from ``offset`` on into ``memory``, which they fill."""
        torch.from_numpy(memory).copy_(self.view(offset, memory.size))

    def _check(self, first: int, count: int) -> None:
        if first < 0 or first + count > self.chunks:
            raise ExecutorError(
                f"arena {self.name} has {self.chunks} chunks; {count} from {first} on are outside: a plan is wrong"
            )
