"""Blocks of a simulated worker, and their use: which are pressed in a burst, and which copies are out of use.

Counts as a live worker's blocks do (``actors/block``), with the same policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..policies.cluster.scaling import BlockPlace, PressedBlock, Queues, RouteQueue
from ..policies.control.loads import LoadBlock


@dataclass(slots=True)
class _Block:
    """A loaded block. last: its last use. idle: seconds without use until it is reported; 0: never."""

    last: float
    idle: float = 0.0
    places: dict[str, BlockPlace] = field(default_factory=dict)  # by application that it was loaded for


class BusyBlocks:
    """The blocks of one worker (see the module)."""

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
