"""The slot allocator of one KV layout: free slots, and the chunks that back each group of slots.

A slot is one page of one layer. Slots come in *groups*: the smallest number of whole chunks that holds whole slots. A
group takes its chunks from the pool when its first slot is taken and gives them back when its last is freed, so that
memory not used by KV is there for parameters. Slots of groups in use go first, so that few groups are half empty.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import gcd

from ..plain import Plain, from_plain
from .chunks import ChunkPool
from .compaction import groups_to_empty


class SlotAllocator:
    """The allocator. Slots are integers; slot s lies at byte ``s * slot_bytes`` of the layout's arena."""

    def __init__(self, arena: str, slot_bytes: int, pool: ChunkPool) -> None:
        self.arena = arena
        self.slot_bytes = slot_bytes
        common = slot_bytes * pool.chunk_bytes // gcd(slot_bytes, pool.chunk_bytes)
        self.group_chunks = common // pool.chunk_bytes
        self.group_slots = common // slot_bytes
        self._pool = pool
        self._partial: dict[int, list[int]] = {}  # group -> its free slots, if any; in order of use
        self._lent: set[int] = set()  # groups whose list in ``_partial`` a fork shares: copied before a change
        self._backing = array("i")  # chunk ids, ``group_chunks`` for each group ever used; -1: given back
        self._empty: list[int] = []  # groups once used and given back: reused before the range grows
        self._idle = 0  # free slots in groups in use
        self.used = 0  # slots

    @property
    def room(self) -> int:
        """The slots that could be taken now without eviction."""
        return self._idle + self._pool.free // self.group_chunks * self.group_slots

    @property
    def unused(self) -> int:
        """The free slots of groups in use."""
        return self._idle

    def lacks(self, n: int) -> int:
        """Return the chunks that the pool must give before ``n`` slots can be taken."""
        return -(-max(0, n - self._idle) // self.group_slots) * self.group_chunks

    def may_return(self, n: int) -> int:
        """Return an upper bound on the chunks freed when ``n`` slots are freed."""
        return min(n, len(self._backing) // self.group_chunks - len(self._empty)) * self.group_chunks

    def allocate(self, n: int) -> list[int] | None:
        """Take ``n`` slots, or none and return None."""
        if n > self._idle and n > self.room:
            return None
        taken: list[int] = []
        missing, partial = n, self._partial
        while missing:
            if not partial:
                first = self._open_group()
                if missing >= self.group_slots:  # a whole group never shows among the partial ones
                    taken += range(first, first + self.group_slots)
                    missing -= self.group_slots
                    continue
                end = first + self.group_slots - 1
                partial[first // self.group_slots] = list(range(end, first + missing - 1, -1))
                taken += range(first, first + missing)
                break
            group = next(iter(partial))
            free = partial[group]
            if len(free) <= missing:
                taken += reversed(free)
                missing -= len(free)
                del partial[group]
            else:
                free = self._own(group, free)
                taken += free[: -missing - 1 : -1]
                del free[-missing:]
                break
        self.used += n
        self._idle -= n
        return taken

    def _own(self, group: int, free: list[int]) -> list[int]:
        """Return the free list of a group, copied if a fork shares it."""
        if group in self._lent:
            self._lent.remove(group)
            free = self._partial[group] = free.copy()
        return free

    def _open_group(self) -> int:
        """Back one more group; return its first slot."""
        end = len(self._backing) // self.group_chunks
        group = self._empty.pop() if self._empty else end
        first = group * self.group_chunks
        chunks = self._pool.commit(self.arena, first, self.group_chunks)
        assert chunks is not None, "room counted a group that the pool does not have"
        if group == end:
            self._backing.extend(chunks)
        else:
            self._backing[first : first + self.group_chunks] = array("i", chunks)
        self._idle += self.group_slots
        self._lent.discard(group)
        return group * self.group_slots

    def free(self, slots: list[int]) -> None:
        """Free slots; groups that become empty return to the pool."""
        for slot in slots:
            group = slot // self.group_slots
            free = self._partial.get(group)
            if free is None:
                self._lent.discard(group)
                self._partial[group] = free = []
            elif self._lent:
                free = self._own(group, free)
            free.append(slot)
            if len(free) == self.group_slots:
                self._close_group(group)
        self.used -= len(slots)
        self._idle += len(slots)

    @property
    def spare(self) -> int:
        """The chunks that could be given back if the used slots lay together."""
        return self._idle // self.group_slots * self.group_chunks

    def vacate(self, chunks: int, limit: int, taken: Iterable[int]) -> dict[int, int]:
        """Give back ``chunks`` chunks, or as many as possible, by moving slots out of their groups; return the moves.

        taken: all used slots. limit: slots that may move.
        """
        free = {group: len(slots) for group, slots in self._partial.items()}
        groups = set(groups_to_empty(free, self.group_slots, -(-chunks // self.group_chunks), limit))
        leaving = [slot for slot in taken if slot // self.group_slots in groups]
        hidden = {group: self._partial.pop(group) for group in groups}
        self._idle -= sum(map(len, hidden.values()))
        targets = self.allocate(len(leaving))
        assert targets is not None, "groups were chosen whose slots do not fit into the others"
        self._partial.update(hidden)
        self._idle += sum(map(len, hidden.values()))
        self.free(leaving)
        return dict(zip(leaving, targets, strict=True))

    def _close_group(self, group: int) -> None:
        del self._partial[group]
        first = group * self.group_chunks
        self._pool.give_back(self.arena, first, self._backing[first : first + self.group_chunks].tolist())
        self._backing[first : first + self.group_chunks] = array("i", [-1] * self.group_chunks)
        self._empty.append(group)
        self._idle -= self.group_slots

    @property
    def chunks(self) -> list[int]:
        """Ids of all chunks that back this layout."""
        return [chunk for chunk in self._backing if chunk >= 0]

    def fork(self, pool: ChunkPool) -> SlotAllocator:
        copy = SlotAllocator(self.arena, self.slot_bytes, pool)
        copy._partial = self._partial.copy()
        copy._backing = self._backing[:]
        copy._empty = self._empty.copy()
        self._lent, copy._lent = set(self._partial), set(self._partial)
        copy.used, copy._idle = self.used, self._idle
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "arena": self.arena,
            "slot_bytes": self.slot_bytes,
            "partial": [[group, *free] for group, free in self._partial.items()],
            "backing": self._backing.tolist(),
            "empty": self._empty.copy(),
            "used": self.used,
        }

    @classmethod
    def restore(cls, data: dict[str, Plain], pool: ChunkPool) -> SlotAllocator:
        allocator = cls(data["arena"], data["slot_bytes"], pool)
        allocator._partial = {entry[0]: list(entry[1:]) for entry in data["partial"]}
        allocator._backing = array("i", data["backing"])
        allocator._empty = from_plain(list[int], data["empty"])
        allocator._idle = sum(len(free) for free in allocator._partial.values())
        allocator.used = data["used"]
        return allocator

    def check(self, taken: list[int]) -> None:
        """Raise AssertionError unless every slot of a group in use is free or in ``taken``, once, and counts are right."""
        assert self.group_slots * self.slot_bytes == self.group_chunks * self._pool.chunk_bytes, "groups are no whole chunks"
        assert len(taken) == len(set(taken)) == self.used, f"slots of {self.arena} are lost or owned twice"
        free = [slot for slots in self._partial.values() for slot in slots]
        groups = [g for g in range(len(self._backing) // self.group_chunks) if self._backing[g * self.group_chunks] >= 0]
        every = [slot for g in groups for slot in range(g * self.group_slots, (g + 1) * self.group_slots)]
        assert sorted(free + taken) == every, f"slots of {self.arena} are lost or owned twice"
        assert len(free) == self._idle, f"free slots of {self.arena} are counted wrongly"
        assert all(0 < len(slots) < self.group_slots for slots in self._partial.values()), "a group is full or empty"
        gone = sorted(set(range(len(self._backing) // self.group_chunks)) - set(groups))
        assert sorted(self._empty) == gone, f"a group of {self.arena} is lost"
        assert self._lent <= set(range(len(self._backing) // self.group_chunks)), "a fork reads a group that is not there"
