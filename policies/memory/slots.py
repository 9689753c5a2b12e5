"""The slots of one KV layout: which are free, which group of chunks backs which.

A slot is one page of one layer. Slots come in *groups*: the smallest number of whole chunks that holds whole slots. A group
takes its chunks from the pool when its first slot is taken and gives them back when its last is freed, so that what KV does
not use is there for parameters. Slots of groups in use go first, so that few groups are half empty.
"""

from __future__ import annotations

from math import gcd

from blockwright.policies.memory.chunks import CHUNK, ChunkPool
from blockwright.policies.plan.sweep_plan import MapGroup


class SlotAllocator:
    """Slots are integers; slot s lies at byte ``s * slot_bytes`` of the layout's arena."""

    def __init__(self, arena: str, slot_bytes: int, pool: ChunkPool) -> None:
        self.arena = arena
        self.slot_bytes = slot_bytes
        common = slot_bytes * CHUNK // gcd(slot_bytes, CHUNK)
        self.group_chunks = common // CHUNK
        self.group_slots = common // slot_bytes
        self.pool = pool
        self._partial: dict[int, list[int]] = {}  # group -> its free slots; groups with any, in order of use
        self._chunks: dict[int, list[int]] = {}  # group in use -> its chunks
        self._empty: list[int] = []  # groups once used and given back: reused before the range grows
        self._end = 0  # groups ever used
        self._idle = 0  # free slots in groups in use
        self.used = 0

    def room(self) -> int:
        """Slots that could be taken now without eviction."""
        return self._idle + self.pool.free // self.group_chunks * self.group_slots

    def lacks(self, n: int) -> int:
        """Chunks that the pool must give before ``n`` slots can be taken."""
        return -(-max(0, n - self._idle) // self.group_slots) * self.group_chunks

    def may_return(self, n: int) -> int:
        """Most chunks that can come back when ``n`` slots are freed."""
        return min(n, len(self._chunks)) * self.group_chunks

    def take(self, n: int, memory: list[MapGroup]) -> list[int] | None:
        """``n`` slots, or None and nothing taken. Memory edits that must precede their use are appended to ``memory``."""
        if n > self.room():
            return None
        taken: list[int] = []
        while len(taken) < n:
            if not self._partial:
                self._open_group(memory)
            group = next(iter(self._partial))
            free = self._partial[group]
            while free and len(taken) < n:
                taken.append(free.pop())
            if not free:
                del self._partial[group]
        self.used += n
        self._idle -= n
        return taken

    def _open_group(self, memory: list[MapGroup]) -> None:
        chunks = self.pool.take(self.group_chunks)
        assert chunks is not None, "room() counted a group that the pool does not have"
        group = self._empty.pop() if self._empty else self._end
        self._end = max(self._end, group + 1)
        self._chunks[group] = chunks
        self._idle += self.group_slots
        first = group * self.group_slots
        self._partial[group] = list(range(first + self.group_slots - 1, first - 1, -1))
        memory.append(MapGroup(self.arena, group * self.group_chunks, chunks, back=False))

    def free(self, slots: list[int], memory: list[MapGroup]) -> None:
        """Return slots; groups that become empty go back to the pool."""
        for slot in slots:
            group = slot // self.group_slots
            free = self._partial.setdefault(group, [])
            free.append(slot)
            if len(free) == self.group_slots:
                del self._partial[group]
                chunks = self._chunks.pop(group)
                self.pool.give_back(chunks)
                self._empty.append(group)
                self._idle -= self.group_slots
                memory.append(MapGroup(self.arena, group * self.group_chunks, chunks, back=True))
        self.used -= len(slots)
        self._idle += len(slots)

    @property
    def chunks(self) -> list[int]:
        """Ids of all chunks that back this layout."""
        return [c for chunks in self._chunks.values() for c in chunks]

    def fork(self, pool: ChunkPool) -> SlotAllocator:
        copy = SlotAllocator(self.arena, self.slot_bytes, pool)
        copy._partial = {g: list(s) for g, s in self._partial.items()}
        copy._chunks = dict(self._chunks)
        copy._empty, copy._end = list(self._empty), self._end
        copy.used, copy._idle = self.used, self._idle
        return copy
