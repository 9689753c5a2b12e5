"""Worker of a simulated cluster: its lives, and the parameters in its memory.

The sweep machine of its instance gives parameters their memory, as on a live worker, and refuses loads without room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..policies.binary_size import binary_size
from ..policies.cluster.assignment import REMEDY
from ..policies.cluster.scaling import BlockPlace, PressedBlock, Queues, RouteQueue
from ..policies.control.events import KvCapacity
from ..policies.control.loads import LoadBlock, NoCapacity
from ..policies.memory.packed_tensor import PackedTensor, Shortage, WantedComponent
from ..policies.memory.worker_memory import WorkerMemory
from ..policies.overload.pool_reading import PoolReading, pool_reading
from ..policies.prediction.instance import Instance
from ..policies.sweep.events import ComponentsReleased, ComponentsWanted
from .devices import states
from .simulation import ClusterSimulation


@dataclass(slots=True)
class _Block:
    """A loaded block. last: its last use. idle: seconds without use until it is reported; 0: never."""

    last: float
    idle: float = 0.0
    places: dict[str, BlockPlace] = field(default_factory=dict)  # by application that it was loaded for


class BusyBlocks:
    """The blocks of one worker, and their use, as a live worker's blocks count it (``actors/block``)."""

    def __init__(self) -> None:
        self._blocks: dict[frozenset[bytes], _Block] = {}  # by ids of components and deltas

    def clear(self) -> None:
        self._blocks.clear()

    def loaded(self, load: LoadBlock, now: float) -> None:
        ids = frozenset(id for id in (*load.ids, *load.deltas) if id)
        block = self._blocks.setdefault(ids, _Block(now))
        block.places[load.holder] = BlockPlace(load.holder, load.first, load.last)
        block.idle = load.idle or block.idle

    def released(self, holder: str, ids: Iterable[bytes]) -> None:
        gone = {*ids}
        for block_ids in [known for known in self._blocks if known <= gone]:
            self._blocks[block_ids].places.pop(holder, None)
            if not self._blocks[block_ids].places:
                del self._blocks[block_ids]

    def pressed(self, queues: Collection[RouteQueue], now: float) -> list[PressedBlock]:
        """Note who uses what now; return the blocks with too long a queue."""
        counted, found = Queues(queues), []
        for block in self._blocks.values():
            use, pressure = counted.use(block.places.values())
            block.last = now if use.tokens else block.last
            found += [] if pressure is None else [pressure]
        return found

    def unused(self, now: float) -> list[tuple[str, ...]]:
        """Return the applications of each block that was not used for long enough, once in each such time."""
        found = []
        for block in self._blocks.values():
            if block.idle and now >= block.last + block.idle:
                block.last = now
                found.append(tuple(block.places))
        return found


@dataclass(slots=True)
class SimulatedWorker:
    """One worker (see the module).

    place: of the instance that it is in. sizes: bytes of components and deltas, by id. budgeted: parameters take memory, as
    the instance was described in bytes, not in pages of KV.
    """

    name: str
    place: int
    cluster: ClusterSimulation
    sizes: dict[bytes, int]
    budgeted: bool
    on_demand: bool
    life: int = 0  # incarnation; 0: it never was up
    up: bool = False
    held: dict[str, dict[bytes, None]] = field(default_factory=dict)  # by holder: ids of components and deltas
    blocks: BusyBlocks = field(default_factory=BusyBlocks)
    _loads: int = 0  # number of the last load

    def rise(self) -> int:
        """Begin a life with nothing loaded; return its number."""
        self.life, self.up = self.life + 1, True
        self._empty()
        return self.life

    def fall(self) -> None:
        """End a life, with all that is held."""
        self.up = False
        self._empty()

    def _empty(self) -> None:
        self.held.clear()
        self.blocks.clear()

    @property
    def nbytes(self) -> int:
        """The bytes of all components and deltas that are held."""
        return sum(self.sizes[id] for id in {id for ids in self.held.values() for id in ids})

    def load(self, load: LoadBlock) -> int | NoCapacity:
        """Give a block its memory; return the bytes to be loaded, or why there is no room."""
        ids = [id for id in (*load.ids, *load.deltas) if id]
        added = self.nbytes
        if (shortage := self._place(load.holder, ids, borrows=load.borrows)) is not None:
            return self._refusal(shortage)
        self.held.setdefault(load.holder, {}).update(dict.fromkeys(ids))
        self.blocks.loaded(load, self.cluster.now)
        return self.nbytes - added

    def release(self, holder: str, ids: Iterable[bytes]) -> None:
        """Release what a holder no longer needs."""
        held = self.held.get(holder, {})
        gone = [id for id in ids if id in held]
        self.blocks.released(holder, gone)
        for id in gone:
            del held[id]
        if gone and self.budgeted:
            self._change(ComponentsReleased(gone, holder))

    def move(self, place: int) -> None:
        """Go on in another instance, with all that is held."""
        self.place = place
        for holder, ids in self.held.items():
            shortage = self._place(holder, [*ids])
            assert shortage is None, "what a worker holds has room in its memory"

    def capacity(self) -> KvCapacity:
        """Return the answer to the controller's question about memory."""
        memory = self._memory
        owned = {name: owned for name, (owned, _) in memory.residence.bytes_by_holder().items()}
        alone = memory.left_alone() if self.on_demand else {}
        return KvCapacity(self.name, self.life, memory.total_bytes - memory.parameter_bytes, alone, owned)

    def uses(self) -> tuple[list[PressedBlock], list[tuple[str, ...]]]:
        """Return the blocks with too long a queue, and the applications of each copy that is out of use."""
        instance, now = self.cluster.instances[self.place], self.cluster.now
        if isinstance(instance, Instance):
            instance.catch_up(now)
            self.cluster.schedule(self.place)
        return self.blocks.pressed(states(instance)[self.name].queues(), now), self.blocks.unused(now)

    def reading(self) -> PoolReading:
        """Return the reading of its memory. An instance of one device need not advance to the current time for it."""
        instance = self.cluster.instances[self.place]
        state = states(instance)[self.name]
        if not isinstance(instance, Instance):
            return pool_reading(state)
        candidate = instance.candidate(self.cluster.now)
        memory, rows = state.parts.memory, state.parts.rows
        head = -(-rows.length[state.parts.queue.first()] // state.config.page_size) if state.waiting else 0
        (local,) = state.parts.routes.all_in_force()
        return PoolReading(
            budget=memory.total_bytes, parameters=memory.parameter_bytes, cached=0,
            kv=candidate.used_blocks * memory.page_bytes(local.kv), pages=candidate.total_blocks,
            used=min(candidate.used_blocks, candidate.total_blocks), head=head, waiting=candidate.waiting_blocks,
        )  # fmt: skip

    @property
    def _memory(self) -> WorkerMemory:
        return states(self.cluster.instances[self.place])[self.name].parts.memory

    def _place(self, holder: str, ids: list[bytes], *, borrows: bool = False) -> Shortage | None:
        if not self.budgeted:
            return None
        self._loads += 1
        wanted = [WantedComponent(id, [PackedTensor(id, self.sizes[id])] if self.sizes[id] else []) for id in ids]
        return self._change(ComponentsWanted(self._loads, holder, wanted, borrows))

    def _change(self, event: ComponentsWanted | ComponentsReleased) -> Shortage | None:
        cluster = self.cluster
        found = cluster.instances[self.place].change_parameters(self.name, event, cluster.now)
        cluster.schedule(self.place)
        return found

    def _refusal(self, shortage: Shortage) -> NoCapacity:
        owned = {name: owned for name, (owned, _) in self._memory.residence.bytes_by_holder().items()}
        message = (
            f"it needs {binary_size(shortage.need)} for parameters on worker {self.name}, and "
            f"{binary_size(shortage.lacking)} are missing; {REMEDY}"
        )
        return NoCapacity(message, shortage.lacking, shortage.never, owned)
