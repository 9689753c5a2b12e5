"""Which components are resident on a worker, where their packed parameters lie, and who needs them.

Parameters come from the same pool as KV: loading lets cached pages give way, unloading gives chunks back.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockwright.policies.memory.chunks import CHUNK, ChunkPool
from blockwright.policies.memory.extents import Extents
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.plan.sweep_plan import MapGroup

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

    def __init__(self, pool: ChunkPool, pages: PageTable) -> None:
        self._pool, self._pages = pool, pages
        self._extents = Extents(VIRTUAL * pool.total)
        self.resident: dict[bytes, Extent] = {}
        self.used = 0  # chunks that hold parameters

    @property
    def chunks(self) -> list[int]:
        """Ids of all chunks that hold parameters."""
        return [c for extent in self.resident.values() for c in extent.chunks]

    def load(self, component: bytes, holder: str, nbytes: int) -> tuple[int, list[MapGroup]] | None:
        """Room for packed parameters: (byte offset in the arena, memory edits to apply before).

        None when there is no room. A component that is resident is only counted: (offset, []).
        """
        if (known := self.resident.get(component)) is not None:
            known.holders.add(holder)
            return known.start * CHUNK, []
        units = -(-nbytes // CHUNK)
        while (chunks := self._pool.take(units)) is None:
            if not self._pages.evict_one():
                return None
        start = self._extents.take(units)
        if start is None:
            self._pool.give_back(chunks)
            return None
        self.resident[component] = Extent(start, chunks, {holder})
        self.used += units
        memory, self._pages.memory = self._pages.memory, []
        return start * CHUNK, [*memory, MapGroup(ARENA, start, chunks, back=False)]

    def unload(self, component: bytes, holder: str) -> bool:
        """``holder`` needs it no more. True when nobody does: memory and the KV it made go back with the next plan."""
        extent = self.resident.get(component)
        if extent is None or holder not in extent.holders:
            return False
        extent.holders.remove(holder)
        if extent.holders:
            return False
        del self.resident[component]
        self.used -= len(extent.chunks)
        self._pages.forget_components({component})
        self._pool.give_back(extent.chunks)
        self._extents.give_back(extent.start, len(extent.chunks))
        self._pages.memory.append(MapGroup(ARENA, extent.start, extent.chunks, back=True))
        return True

    def fork(self, pool: ChunkPool, pages: PageTable) -> Residence:
        copy = Residence(pool, pages)
        copy._extents, copy.used = self._extents.fork(), self.used
        copy.resident = {c: Extent(e.start, e.chunks, set(e.holders)) for c, e in self.resident.items()}
        return copy
