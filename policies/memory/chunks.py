"""One worker's pool of physical memory chunks, and the mapping edits that the device has not been sent yet.

Parameters and KV are cut from the same pool, so that memory given back by one can be taken by the other. Allocation is
decided here, over ids; the device maps. Lack of room is an answer (None), not an exception.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..plain import Plain, from_plain, to_plain
from ..plan.sweep_plan import MapGroup


class ChunkPool:
    """Ids 0 to total - 1 of chunks of ``chunk_bytes``, each free or owned exactly once.

    Free ids are a high-water mark and the ids returned below it, so that a fresh pool of any size costs nothing and a fork
    copies only what was returned.
    """

    def __init__(self, total: int, chunk_bytes: int) -> None:
        self.total = total
        self.chunk_bytes = chunk_bytes
        self._end = 0  # ids from here on were never taken
        self._returned: list[int] = []  # ids below ``_end`` that are free; the last returned is taken first
        self._edits: list[MapGroup] = []  # in order; only the next plan takes them

    @property
    def free(self) -> int:
        """The number of free chunks."""
        return self.total - self._end + len(self._returned)

    @property
    def pending(self) -> bool:
        """True if there are edits for the next plan."""
        return bool(self._edits)

    def unmapped(self, arena: str) -> bool:
        """Return whether chunks of an arena are committed that the device does not know of yet."""
        return any(edit.arena == arena and not edit.back for edit in self._edits)

    def commit(self, arena: str, offset: int, n: int) -> list[int] | None:
        """Back ``n`` units of ``arena`` from unit ``offset`` on; return the chunk ids, or None if there are too few."""
        reused = min(n, len(self._returned))
        fresh = n - reused
        if self._end + fresh > self.total:
            return None
        chunks = list(range(self._end, self._end + fresh))
        self._end += fresh
        if reused:
            chunks += self._returned[-reused:]
            del self._returned[-reused:]
        self._edits.append(MapGroup(arena, offset, chunks, back=False))
        return chunks

    def give_back(self, arena: str, offset: int, chunks: list[int]) -> None:
        """Free chunks that ``commit`` returned; the device unmaps them with the next plan."""
        self._returned.extend(chunks)
        self._edits.append(MapGroup(arena, offset, chunks, back=True))

    def reserve(self, n: int) -> list[int] | None:
        """Take ``n`` chunks for what lies outside of all arenas; return their ids, or None if there are too few."""
        if n > self.free:
            return None
        fresh = max(0, n - len(self._returned))
        chunks = [*range(self._end, self._end + fresh), *self._returned[len(self._returned) - (n - fresh) :]]
        del self._returned[len(self._returned) - (n - fresh) :]
        self._end += fresh
        return chunks

    def return_reserved(self, chunks: list[int]) -> None:
        """Free chunks that ``reserve`` returned."""
        self._returned.extend(chunks)

    def take_edits(self) -> list[MapGroup]:
        """Return all edits since the last call, for the plan being made."""
        edits, self._edits = self._edits, []
        return edits

    def fork(self) -> ChunkPool:
        copy = ChunkPool(self.total, self.chunk_bytes)
        copy._end = self._end
        copy._returned = self._returned.copy()
        copy._edits = self._edits.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "total": self.total,
            "chunk_bytes": self.chunk_bytes,
            "end": self._end,
            "returned": self._returned.copy(),
            "edits": to_plain(self._edits),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain]) -> ChunkPool:
        pool = cls(data["total"], data["chunk_bytes"])
        pool._end = data["end"]
        pool._returned = from_plain(list[int], data["returned"])
        pool._edits = from_plain(list[MapGroup], data["edits"])
        return pool

    def check(self, owned: Iterable[int]) -> None:
        """Raise AssertionError unless every chunk is free or in ``owned``, once."""
        every = sorted([*self._returned, *owned])
        assert every == list(range(self._end)), "a chunk is lost or owned twice"
        assert self._end <= self.total, "more chunks are owned than there are"
