"""Which components are resident on a worker, where their packed parameters lie, and who needs them.

Parameters come from the same pool as KV: loading lets cached pages give way, unloading gives chunks back.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockwright.policies.memory.chunks import ChunkPool
from blockwright.policies.memory.extents import Extents
from blockwright.policies.plain import Plain

ARENA = "parameters"
VIRTUAL = 4  # the arena's reserved range in budgets: addresses are free, and holes between components must not refuse a load


@dataclass(frozen=True, slots=True)
class Extent:
    """``chunks`` back the parameters arena from unit ``start`` on."""

    start: int
    chunks: list[int]
    holders: set[str]


class Residence:
    """Components by id. An entry exists exactly while somebody holds the component."""

    def __init__(self, pool: ChunkPool) -> None:
        self._pool = pool
        self._extents = Extents(VIRTUAL * pool.total)
        self._resident: dict[bytes, Extent] = {}
        self.used = 0  # chunks that hold parameters

    @property
    def components(self) -> list[bytes]:
        """Ids of what is resident, in order of loading."""
        return list(self._resident)

    @property
    def chunks(self) -> list[int]:
        """Ids of all chunks that hold parameters."""
        return [c for extent in self._resident.values() for c in extent.chunks]

    def hold(self, component: bytes, holder: str) -> int | None:
        """Count one more holder of a resident component: its byte offset in the arena. None: it is not resident."""
        if (known := self._resident.get(component)) is None:
            return None
        known.holders.add(holder)
        return known.start * self._pool.chunk_bytes

    def load(self, component: bytes, holder: str, nbytes: int) -> int | None:
        """Room for packed parameters: their byte offset in the arena. None: the pool has too few chunks, or no range."""
        units = -(-nbytes // self._pool.chunk_bytes)
        start = self._extents.take(units)
        if start is None:
            return None
        chunks = self._pool.commit(ARENA, start, units)
        if chunks is None:
            self._extents.give_back(start, units)
            return None
        self._resident[component] = Extent(start, chunks, {holder})
        self.used += units
        return start * self._pool.chunk_bytes

    def units(self, nbytes: int) -> int:
        """Chunks that so many bytes of parameters take."""
        return -(-nbytes // self._pool.chunk_bytes)

    def release(self, component: bytes, holder: str) -> bool:
        """``holder`` needs it no more. True when nobody does: its memory goes back with the next plan."""
        extent = self._resident.get(component)
        if extent is None or holder not in extent.holders:
            return False
        extent.holders.remove(holder)
        if extent.holders:
            return False
        del self._resident[component]
        self.used -= len(extent.chunks)
        self._extents.give_back(extent.start, len(extent.chunks))
        self._pool.give_back(ARENA, extent.start, extent.chunks)
        return True

    def fork(self, pool: ChunkPool) -> Residence:
        copy = Residence(pool)
        copy._extents, copy.used = self._extents.fork(), self.used
        copy._resident = {c: Extent(e.start, e.chunks, set(e.holders)) for c, e in self._resident.items()}
        return copy

    def snapshot(self) -> list[Plain]:
        return [[c, e.start, e.chunks.copy(), sorted(e.holders)] for c, e in self._resident.items()]

    @classmethod
    def restore(cls, data: list[Plain], pool: ChunkPool) -> Residence:
        residence = cls(pool)
        for component, start, chunks, holders in data:
            residence._extents.take_at(start, len(chunks))
            residence._resident[component] = Extent(start, list(chunks), set(holders))
            residence.used += len(chunks)
        return residence

    def check(self) -> None:
        """Every component has a holder; ranges of the arena are owned once and counted."""
        assert all(extent.holders for extent in self._resident.values()), "a component is resident for nobody"
        assert self.used == len(self.chunks), "chunks of parameters are counted wrongly"
        self._extents.check([(e.start, len(e.chunks)) for e in self._resident.values()])
