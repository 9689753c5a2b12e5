"""Scaling of blocks: when one is deployed once more, and where (BlockLLM, section 5.5). For workers: ``provisioning.py``.

A block's *queue* is every sequence that passes it on its worker, running or waiting; its limit is what the worker has
memory for. Past 80 % of that the block gets a second instance on another worker, alone: the chain's other hops stay. All
routes pass the workers in one order, and so no route returns to a worker that it has left. A block moves to a later worker
with all that follows it in the chain, and to an earlier one with all that precedes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..model.chain import Component, Hop, Route
from .assignment import Placeable, WorkerCapacity, missing_bytes, page_of

SCALE_OUT = 0.8  # fraction of the longest queue


@dataclass(frozen=True, slots=True)
class RouteQueue:
    """The sequences of one route on one worker, whose hop there is components ``first`` to ``last`` (exclusive)."""

    application: str
    first: int
    last: int
    running: int  # sequences
    waiting: int
    tokens: int  # tokens of both
    limit: int  # tokens of KV that fit with nothing else there


@dataclass(frozen=True, slots=True)
class BlockUse:
    """The sequences that pass a block, when last counted."""

    running: int  # sequences
    waiting: int
    tokens: int
    pressure: float  # queue as a fraction of the longest that memory allows


UNUSED = BlockUse(0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class PressedBlock:
    """A block whose queue is past ``SCALE_OUT``."""

    pressure: float
    applications: dict[str, tuple[int, int]]  # its place in their chains; the longest queue first


class BlockPlace(NamedTuple):
    """The place of a block: components ``first`` to ``last`` (exclusive) of an application that it serves."""

    application: str
    first: int
    last: int


class Queues:
    """The queues of one worker's routes, by application."""

    def __init__(self, queues: Iterable[RouteQueue]) -> None:
        self.of: dict[str, list[RouteQueue]] = {}
        self._total = 0.0  # sum of fractions of the worker's memory
        for queue in queues:
            self.of.setdefault(queue.application, []).append(queue)
            self._total += _part(queue)

    def use(self, places: Iterable[BlockPlace]) -> tuple[BlockUse, PressedBlock | None]:
        """Return the usage of a block that serves these places. Memory that others take is not available to its queue."""
        mine: list[tuple[float, RouteQueue, BlockPlace]] = []
        for place in places:
            for queue in self.of.get(place.application, ()):
                if queue.first <= place.first and place.last <= queue.last:
                    mine.append((_part(queue), queue, place))
        own = sum(part for part, _, _ in mine)
        pressure = own / max(1.0 - (self._total - own), 0.01)
        use = BlockUse(
            sum(queue.running for _, queue, _ in mine),
            sum(queue.waiting for _, queue, _ in mine),
            sum(queue.tokens for _, queue, _ in mine),
            pressure,
        )
        if pressure <= SCALE_OUT:
            return use, None
        mine.sort(key=lambda found: (-found[0], found[2].application))
        return use, PressedBlock(pressure, {place.application: (place.first, place.last) for _, _, place in mine})


def _part(queue: RouteQueue) -> float:
    return queue.tokens / max(queue.limit, 1)


def scale_out(
    source: str,
    pressed: Iterable[PressedBlock],
    applications: Mapping[str, Placeable],
    workers: Mapping[str, WorkerCapacity],
    taken: Collection[tuple[str, str]],
) -> Route | None:
    """Return one more route, of version 0, for the heaviest block of ``source`` that has room elsewhere.

    Of equals, the smallest block. workers: in their order. taken: (application, worker) pairs where the application has
    components already.
    """
    order = list(workers)
    found: list[tuple[float, int, int, int, Route]] = []
    for block in pressed:
        for rank, (name, (first, last)) in enumerate(block.applications.items()):
            one = applications[name]
            for target, room in workers.items():
                if target == source or (name, target) in taken or room.free is None:
                    continue
                hops = _hops(
                    source, target, first, last, len(one.components), later=order.index(target) > order.index(source)
                )
                moved = next(hop for hop in hops if hop.worker == target)
                if not all(_has_kv(one.components, hop) for hop in hops):
                    continue
                added = missing_bytes(one, moved, room)
                if added + page_of(one.components, moved)[1] <= room.free:
                    route = Route(f"{name}@{'+'.join(hop.worker for hop in hops)}", 0, name, hops)
                    size = moved.last - moved.first
                    found.append((-block.pressure, rank, size, added, route))
    return min(found, key=lambda f: (*f[:4], f[4].id))[4] if found else None


def _hops(source: str, target: str, first: int, last: int, end: int, *, later: bool) -> tuple[Hop, ...]:
    hops = (Hop(source, 0, first), Hop(target, first, end)) if later else (Hop(target, 0, last), Hop(source, last, end))
    return tuple(hop for hop in hops if hop.first < hop.last)


def _has_kv(components: Sequence[Component], hop: Hop) -> bool:
    """Return whether a hop has KV: a home without KV could skip no pages. A chain without any KV may be cut anywhere."""
    return any(c.kv is not None for c in components[hop.first : hop.last]) or all(c.kv is None for c in components)
