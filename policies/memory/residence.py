"""Resident parameters of a worker: the places of packed tensors, and the applications that need them.

A component or a delta is a list of packed tensors. A tensor is stored once, however many components contain it. It goes
with the last of them, and a component or delta goes with its last holder. Tensors lie one behind the other in granules, so
that small ones share chunks; a chunk is committed while any tensor touches it. Parameters come from the same pool as KV:
loading evicts cached pages, unloading gives chunks back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ..plain import Plain
from .chunks import ChunkPool
from .packed_tensor import PackedTensor, TensorPlace
from .range_allocator import RangeAllocator

ARENA = "parameters"
VIRTUAL = 4  # the arena's address range, in budgets: addresses are free, and holes must not refuse a load


class Extent:
    """Granules of the parameters arena from ``start`` on, and the components and deltas that need them."""

    def __init__(self, start: int, length: int, users: set[bytes]) -> None:
        self.start = start
        self.length = length
        self.users = users


class Resident:
    """A component or delta: its packed tensors in order, and the applications that need it."""

    def __init__(self, tensors: list[bytes], holders: set[str]) -> None:
        self.tensors, self.holders = tensors, holders


class Residence:
    """Components and deltas by id. An entry exists exactly while it has a holder. ``granule``: bytes.

    A *borrower* is a holder that goes with the others: what one of them holds alone beside borrowers is its own.
    """

    def __init__(self, pool: ChunkPool, granule: int) -> None:
        if pool.chunk_bytes % granule:
            raise ValueError(f"chunks of {pool.chunk_bytes} bytes are no multiple of a granule of {granule}")
        self._pool, self._granule = pool, granule
        self._free = RangeAllocator(VIRTUAL * pool.total * (pool.chunk_bytes // granule))
        self._extents: dict[bytes, Extent] = {}  # by packed tensor
        self._resident: dict[bytes, Resident] = {}
        self._borrowers: set[str] = set()  # holders, each while it has anything here
        self._chunks: dict[int, int] = {}  # place of a chunk in the arena -> its id
        self._touching: dict[int, int] = {}  # place of a chunk -> number of tensors that touch it

    @property
    def components(self) -> list[bytes]:
        """The ids of resident components and deltas, in order of loading."""
        return list(self._resident)

    @property
    def chunks(self) -> list[int]:
        """The ids of all chunks that hold parameters."""
        return list(self._chunks.values())

    @property
    def used(self) -> int:
        """The number of chunks that hold parameters."""
        return len(self._chunks)

    @property
    def tensor_bytes(self) -> int:
        """The bytes of all packed tensors, each rounded up to whole granules."""
        return sum(extent.length for extent in self._extents.values()) * self._granule

    def bytes_by_holder(self) -> dict[str, tuple[int, int]]:
        """Return two sums for each application: bytes of packed tensors that it alone needs, and of shared ones.

        Borrowers count only where there is no other holder.
        """
        holders: dict[bytes, set[str]] = {}
        for resident in self._resident.values():
            for id in resident.tensors:
                holders.setdefault(id, set()).update(resident.holders)
        found: dict[str, tuple[int, int]] = {}
        for id, names in holders.items():
            nbytes = self._extents[id].length * self._granule
            owners = names - self._borrowers or names
            for name in names:
                owned, shared = found.get(name, (0, 0))
                found[name] = (owned + nbytes, shared) if len(owners) == 1 and name in owners else (owned, shared + nbytes)
        return dict(sorted(found.items()))

    def chunks_by_holder(self) -> dict[str, int]:
        """Return, for each application, the chunks that its parameters touch: all that would be in use with it alone."""
        tensors: dict[str, set[bytes]] = {}
        for resident in self._resident.values():
            for name in resident.holders:
                tensors.setdefault(name, set()).update(resident.tensors)
        found: dict[str, int] = {}
        for name, ids in sorted(tensors.items()):
            count = end = 0
            for units in sorted((self._units(self._extents[id]) for id in ids), key=lambda units: units.start):
                count += max(0, units.stop - max(units.start, end))
                end = max(end, units.stop)
            found[name] = count
        return found

    def holds(self, component: bytes) -> bool:
        return component in self._resident

    def holders(self) -> set[str]:
        """Return the applications that have parameters here."""
        return {holder for resident in self._resident.values() for holder in resident.holders}

    def claims(self) -> dict[str, list[bytes]]:
        """Return the ids of components and deltas that each application needs."""
        found: dict[str, list[bytes]] = {}
        for id, resident in self._resident.items():
            for holder in sorted(resident.holders):
                found.setdefault(holder, []).append(id)
        return found

    def only(self, holder: str) -> bool:
        """Return whether no other application but borrowers needs anything here."""
        return all(resident.holders - self._borrowers <= {holder} for resident in self._resident.values())

    def chunks_of(self, tensors: Iterable[PackedTensor]) -> int:
        """Return the chunks that these tensors take by themselves, each counted once."""
        lengths = {tensor.id: max(1, -(-tensor.nbytes // self._granule)) for tensor in tensors}
        return -(-sum(lengths.values()) * self._granule // self._pool.chunk_bytes)

    def borrow(self, holder: str) -> None:
        """Note that a holder of something here is a borrower, until it holds nothing more."""
        self._borrowers.add(holder)

    def hold(self, component: bytes, holder: str) -> list[TensorPlace] | None:
        """Add a holder of a resident component; return the places of its tensors. None: it is not resident."""
        if (known := self._resident.get(component)) is None:
            return None
        known.holders.add(holder)
        return self._places(known.tensors, ())

    def chunks_for(self, tensors: Sequence[PackedTensor]) -> int | None:
        """Return the chunks that the pool must give before ``load`` can place these. None: no range is long enough."""
        taken = self._take(tensors)
        if taken is None:
            return None
        self._give_back(taken.values())
        return len(self._uncommitted(taken.values()))

    def load(self, component: bytes, holder: str, tensors: Sequence[PackedTensor]) -> list[TensorPlace] | None:
        """Place the tensors of a component that is not resident; return their places.

        None: the pool has too few chunks, or no range is long enough.
        """
        taken = self._take(tensors)
        if taken is None:
            return None
        wanted = self._uncommitted(taken.values())
        if len(wanted) > self._pool.free:
            self._give_back(taken.values())
            return None
        for first, count in _stretches(wanted):
            chunks = self._pool.commit(ARENA, first, count)
            assert chunks is not None, "the pool has fewer free chunks than it says"
            self._chunks.update(zip(range(first, first + count), chunks, strict=True))
        for extent in taken.values():
            for unit in self._units(extent):
                self._touching[unit] = self._touching.get(unit, 0) + 1
        self._extents.update(taken)
        ids = [tensor.id for tensor in tensors]
        for id in ids:
            self._extents[id].users.add(component)
        self._resident[component] = Resident(ids, {holder})
        return self._places(ids, taken)

    def release(self, component: bytes, holder: str) -> list[bytes] | None:
        """Remove a holder. Return None if others remain, else the tensors that go: their memory is given back."""
        known = self._resident.get(component)
        if known is None or holder not in known.holders:
            return None
        known.holders.remove(holder)
        if holder in self._borrowers and not any(holder in other.holders for other in self._resident.values()):
            self._borrowers.remove(holder)
        if known.holders:
            return None
        del self._resident[component]
        gone = []
        for id in dict.fromkeys(known.tensors):
            users = self._extents[id].users
            users.remove(component)
            if not users:
                gone.append(id)
        extents = [self._extents.pop(id) for id in gone]
        self._give_back(extents)
        self._uncommit(extents)
        return gone

    def _take(self, tensors: Iterable[PackedTensor]) -> dict[bytes, Extent] | None:
        """Take ranges for the tensors that are not there yet."""
        taken: dict[bytes, Extent] = {}
        for tensor in tensors:
            if tensor.id in self._extents or tensor.id in taken:
                continue
            length = max(1, -(-tensor.nbytes // self._granule))
            start = self._free.allocate(length)
            if start is None:
                self._give_back(taken.values())
                return None
            taken[tensor.id] = Extent(start, length, set())
        return taken

    def _give_back(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            self._free.give_back(extent.start, extent.length)

    def _uncommit(self, extents: Iterable[Extent]) -> None:
        """Return chunks to the pool that only these extents touched."""
        empty = []
        for extent in extents:
            for unit in self._units(extent):
                self._touching[unit] -= 1
                if not self._touching[unit]:
                    del self._touching[unit]
                    empty.append(unit)
        for first, count in _stretches(empty):
            self._pool.give_back(ARENA, first, [self._chunks.pop(unit) for unit in range(first, first + count)])

    def _uncommitted(self, extents: Iterable[Extent]) -> set[int]:
        return {unit for extent in extents for unit in self._units(extent) if unit not in self._chunks}

    def _units(self, extent: Extent) -> range:
        """Return the places of the chunks that an extent touches."""
        granules = self._pool.chunk_bytes // self._granule
        return range(extent.start // granules, -(-(extent.start + extent.length) // granules))

    def _places(self, ids: Iterable[bytes], fresh: Iterable[bytes]) -> list[TensorPlace]:
        new, places = set(fresh), []
        for id in ids:  # of two equal tensors only the first is fresh
            places.append(TensorPlace(self._extents[id].start * self._granule, id in new))
            new.discard(id)
        return places

    def fork(self, pool: ChunkPool) -> Residence:
        copy = Residence(pool, self._granule)
        copy._free = self._free.fork()
        copy._extents = {id: Extent(e.start, e.length, set(e.users)) for id, e in self._extents.items()}
        copy._resident = {id: Resident(r.tensors, set(r.holders)) for id, r in self._resident.items()}
        copy._chunks, copy._touching = self._chunks.copy(), self._touching.copy()
        copy._borrowers = self._borrowers.copy()
        return copy

    def snapshot(self) -> dict[str, Plain]:
        return {
            "granule": self._granule,
            "tensors": [[id, e.start, e.length, sorted(e.users)] for id, e in self._extents.items()],
            "resident": [[id, r.tensors.copy(), sorted(r.holders)] for id, r in self._resident.items()],
            "chunks": [[unit, chunk] for unit, chunk in sorted(self._chunks.items())],
            "borrowers": sorted(self._borrowers),
        }

    @classmethod
    def restore(cls, data: dict[str, Plain], pool: ChunkPool) -> Residence:
        residence = cls(pool, data["granule"])
        for id, start, length, users in data["tensors"]:
            residence._free.allocate_at(start, length)
            extent = residence._extents[id] = Extent(start, length, set(users))
            for unit in residence._units(extent):
                residence._touching[unit] = residence._touching.get(unit, 0) + 1
        residence._resident = {id: Resident(list(tensors), set(holders)) for id, tensors, holders in data["resident"]}
        residence._chunks, residence._borrowers = dict(data["chunks"]), set(data["borrowers"])
        return residence

    def check(self) -> None:
        """Raise AssertionError unless everything has a holder, granules are owned once, and chunks back just the tensors."""
        users: dict[bytes, set[bytes]] = {}
        for component, resident in self._resident.items():
            assert resident.holders, "a component is resident without a holder"
            for id in resident.tensors:
                users.setdefault(id, set()).add(component)
        assert users == {id: extent.users for id, extent in self._extents.items()}, "a packed tensor is counted wrongly"
        touching: dict[int, int] = {}
        for extent in self._extents.values():
            for unit in self._units(extent):
                touching[unit] = touching.get(unit, 0) + 1
        assert touching == self._touching, "tensors that touch a chunk are counted wrongly"
        assert self._borrowers <= self.holders(), "a borrower has nothing here"
        assert touching.keys() == self._chunks.keys(), "a chunk without parameters is committed, or parameters without one"
        self._free.check([(e.start, e.length) for e in self._extents.values()])


def _stretches(units: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending places as (first, count) of contiguous runs."""
    found = []
    for _, group in groupby(enumerate(sorted(units)), lambda pair: pair[1] - pair[0]):
        neighbours = [unit for _, unit in group]
        found.append((neighbours[0], len(neighbours)))
    return found
