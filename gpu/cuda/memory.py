"""Memory of a card in chunks: address ranges are reserved once, and chunks are mapped into them and unmapped again.

A chunk keeps its bytes when it moves, so code must not count on zeros. It is mapped at one place at a time. What is not
mapped cannot be touched. Unmapping needs that nothing queued is left, because queued work names addresses. This file has
the account of what is mapped where; ``mirror.py`` and ``driver.py`` do the mapping.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from ..errors import ExecutorError


def nothing_queued() -> int:
    """Return 0: memory that no stream uses."""
    return 0


class ChunkMemory(ABC):
    """A pool of ``chunks`` chunks of ``chunk`` bytes. Addresses are in bytes, counts in chunks.

    ``queued`` tells how much work is queued that has not ended. A wrong call raises ``ExecutorError`` and changes nothing.
    """

    def __init__(self, chunk: int, chunks: int, queued: Callable[[], int] = nothing_queued) -> None:
        self.chunk, self.chunks = chunk, chunks
        self._queued = queued
        self._ranges: dict[int, int] = {}  # count by first address
        self._id_at: dict[int, int] = {}  # by address
        self._mapped: set[int] = set()

    def reserve(self, count: int) -> int:
        """Return the address of a new range with nothing mapped."""
        address = self._reserve(count)
        self._ranges[address] = count
        return address

    def map(self, address: int, ids: Sequence[int]) -> None:
        """Map these chunks, one behind the other, from ``address`` on."""
        places = self._places(address, len(ids))
        if wrong := [id for id in ids if not 0 <= id < self.chunks]:
            raise ExecutorError(f"chunk {wrong[0]} does not exist; the pool has {self.chunks}: a plan is wrong")
        if len(set(ids)) != len(ids) or not self._mapped.isdisjoint(ids):
            twice = sorted(self._mapped.intersection(ids)) or sorted(ids)
            raise ExecutorError(f"chunk {twice[0]} would be mapped at two places; unmap it first")
        if taken := [place for place in places if place in self._id_at]:
            raise ExecutorError(f"chunk {self._id_at[taken[0]]} is mapped at {taken[0]:#x} already; unmap it first")
        if ids:
            self._map(address, ids)
            self._id_at.update(zip(places, ids, strict=True))
            self._mapped.update(ids)

    def unmap(self, address: int, count: int) -> list[int]:
        """Unmap ``count`` chunks from ``address`` on, and return their ids. Their bytes stay."""
        places = self._places(address, count)
        if missing := [place for place in places if place not in self._id_at]:
            raise ExecutorError(f"nothing is mapped at {missing[0]:#x}: a plan is wrong")
        if queued := self._queued():
            raise ExecutorError(f"{count} chunks would be unmapped while {queued} operations are queued; settle first")
        if not count:
            return []
        self._unmap(address, count)
        ids = [self._id_at.pop(place) for place in places]
        self._mapped.difference_update(ids)
        return ids

    def id_at(self, address: int) -> int | None:
        """Return the chunk that is mapped at ``address``, or None."""
        return self._id_at.get(address)

    @abstractmethod
    def view(self, address: int, nbytes: int) -> torch.Tensor:
        """Return uint8 [nbytes] over a range, mapped or not. It keeps the memory alive."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Views are invalid afterwards."""

    @abstractmethod
    def _reserve(self, count: int) -> int: ...

    @abstractmethod
    def _map(self, address: int, ids: Sequence[int]) -> None: ...

    @abstractmethod
    def _unmap(self, address: int, count: int) -> None: ...

    def _places(self, address: int, count: int) -> list[int]:
        """Return the addresses of ``count`` chunks, all of one range."""
        for first, size in self._ranges.items():
            if first <= address and address + count * self.chunk <= first + size * self.chunk:
                if (address - first) % self.chunk:
                    break
                return list(range(address, address + count * self.chunk, self.chunk))
        raise ExecutorError(f"{count} chunks at {address:#x} lie in no reserved range: a plan is wrong")
