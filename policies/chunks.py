"""One worker's pool of physical chunks, and the extents of virtual ranges that they back.

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

    def state(self) -> tuple[int, ...]:
        """For digests."""
        return (self.total, len(self._free))

    def check(self, owned: list[int]) -> None:
        """Every chunk is free or in ``owned``, once."""
        every = sorted([*self._free, *owned])
        assert every == list(range(self.total)), "a chunk is lost or owned twice"


class Extents:
    """First-fit allocation of runs of units in a virtual range of ``size`` units. Neighbouring free runs are merged."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)]  # (start, length), ascending

    def take(self, n: int) -> int | None:
        """Start of a run of ``n`` units, or None."""
        for i, (start, length) in enumerate(self._free):
            if length >= n:
                if length == n:
                    del self._free[i]
                else:
                    self._free[i] = (start + n, length - n)
                return start
        return None

    def give_back(self, start: int, n: int) -> None:
        runs = sorted([*self._free, (start, n)])
        merged = runs[:1]
        for run in runs[1:]:
            last_start, last_length = merged[-1]
            assert last_start + last_length <= run[0], "an extent was given back twice"
            if last_start + last_length == run[0]:
                merged[-1] = (last_start, last_length + run[1])
            else:
                merged.append(run)
        self._free = merged

    def fork(self) -> Extents:
        copy = Extents(0)
        copy._free = list(self._free)
        return copy
