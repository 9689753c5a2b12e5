"""One worker's pool of physical chunks.

Parameters and KV are cut from the same pool, so that what one gives back the other can take. Allocation is decided
here, over ids; the device maps. No room is an answer (None), not an exception.
"""

from __future__ import annotations

CHUNK = 64 * 1024  # bytes on a CPU


class ChunkPool:
    """Ids 0 .. total - 1, each free or owned exactly once."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))  # a stack whose top is the lowest id

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, n: int) -> list[int] | None:
        if n > len(self._free):
            return None
        taken = self._free[len(self._free) - n :]
        del self._free[len(self._free) - n :]
        return taken

    def give_back(self, chunks: list[int]) -> None:
        self._free.extend(chunks)

    def fork(self) -> ChunkPool:
        copy = ChunkPool(0)
        copy.total, copy._free = self.total, list(self._free)
        return copy

    def check(self, owned: list[int]) -> None:
        """Every chunk is free or in ``owned``, once."""
        every = sorted([*self._free, *owned])
        assert every == list(range(self.total)), "a chunk is lost or owned twice"
