"""Assignment of a new application to workers: to all if memory allows, else where it fits.

Owns the rules by which the controller uses ``placement.py``. An application that fits on every worker goes to every
worker. Otherwise, applications that are added together are placed by memory and locality; a single one goes to each worker
with room for it; and a new worker gets whatever fits there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from ..model.chain import Component, Hop, Route
from ..model.partition import hop_borders, place
from .placement import place_by_locality, place_by_room

STEPS = 8  # of the fastest worker's speed, to which speeds are rounded
REMEDY = "remove another application, or give workers more memory (--set memory=...)"


class Placeable(Protocol):
    """An application, as far as placement needs it."""

    @property
    def components(self) -> tuple[Component, ...]: ...

    @property
    def max_length(self) -> int: ...

    @property
    def span(self) -> int: ...

    def tensors(self, first: int = 0, last: int | None = None) -> dict[bytes, int]: ...


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """The capacity of a worker, as placement sees it.

    free: bytes besides its parameters; None: unknown. held: the tensors to be placed that it holds or will hold. speed:
    bytes of parameters passed in a second; 0: unknown. device: full name, or empty.
    """

    free: int | None
    held: Collection[bytes]
    speed: float = 0.0
    device: str = ""

    @property
    def kind(self) -> str:
        """The kind of device. Workers of one kind form pipelines."""
        return self.device.partition(":")[0]


def page_of(components: Sequence[Component], hop: Hop) -> tuple[int, int]:
    """Return a page of a sequence: its tokens, and its raw bytes in all layers of a hop."""
    kvs = [c.kv for c in components[hop.first : hop.last] if c.kv is not None]
    return (kvs[0].page_size if kvs else 0), sum(kv.raw_bytes for kv in kvs)


def missing_bytes(one: Placeable, hop: Hop, room: WorkerCapacity) -> int:
    """Return the bytes of a hop's parameters that its worker lacks."""
    return _added(one.tensors(hop.first, hop.last), room)


def routes_where_it_fits(name: str, one: Placeable, workers: Mapping[str, WorkerCapacity]) -> list[Route]:
    """Return the routes of a single application whose workers have room for it and for a page of KV.

    Raises ValueError if there is none, with the shortage of the worker that lacks least.
    """
    routes = _everywhere({name: one}, workers)
    found: list[Route] = []
    short: list[tuple[int, str]] = []
    for route in routes:
        lacks = [lack for hop in route.hops if (lack := _lack(one, hop, workers[hop.worker]))[0] > 0]
        if lacks:
            short.append(max(lacks))
        else:
            found.append(route)
    if not found:
        raise ValueError(min(short)[1])
    return found


def routes_of_all(
    new: Mapping[str, Placeable], workers: Mapping[str, WorkerCapacity], *, by_room: bool = False
) -> list[Route]:
    """Return routes of applications that are added together.

    An application that fits nowhere is planned everywhere: the workers refuse it in their words. If not everything fits,
    each worker keeps room for a sequence of the greatest length, if that leaves no application out, else for a page.
    by_room: what does not fit everywhere is placed for the least fragmentation.
    """
    chains, spans = {name: one.components for name, one in new.items()}, {name: one.span for name, one in new.items()}
    everywhere = _everywhere(new, workers)
    free = {name: room.free for name, room in workers.items() if room.free is not None}
    if len(free) < len(workers):
        return everywhere
    needs = _needs(everywhere, new)
    pages = [page_of(one.components, Hop("", 0, len(one.components))) for one in new.values()]
    page = max((nbytes for _, nbytes in pages), default=0)
    if all(_added(needs.get(name, {}), room) + page <= free[name] for name, room in workers.items()):
        return everywhere
    fixed = [route for route in everywhere if spans[route.application] > 1]
    for name, need in _needs(fixed, new).items():
        free[name] -= _added(need, workers[name])
    single = {name: components for name, components in chains.items() if spans[name] == 1}
    longest = max(
        -(-one.max_length // size) * nbytes for one, (size, nbytes) in zip(new.values(), pages, strict=True) if size
    )
    routes: list[Route] = []
    kinds = {name: room.kind for name, room in workers.items()}
    for kept in (longest, page):
        memory = {name: free[name] - kept for name in workers}
        if by_room:
            routes = place_by_room(single, memory, {}, 0, kinds)
        else:
            routes = place_by_locality(single, memory, {}, 0, relative_speeds(workers), kinds)
        if {route.application for route in routes} == single.keys():
            break
    placed = {route.application for route in routes}
    return routes + [route for route in everywhere if route.application not in placed]


def routes_on_new_worker(worker: str, memory: int | None, applications: Mapping[str, Placeable]) -> list[Route]:
    """Return routes on a worker that has nothing: whole chains, as many of the first in ``applications`` as fit.

    ``memory``: bytes for parameters and KV; None: unknown.
    """
    held: dict[bytes, int] = {}
    routes: list[Route] = []
    for name, one in applications.items():
        if one.span > 1:
            continue
        free = None if memory is None else memory - sum(held.values())
        with suppress(ValueError):  # no room
            routes += routes_where_it_fits(name, one, {worker: WorkerCapacity(free, held.keys())})
            held.update(one.tensors())
    return routes


def relative_speeds(workers: Mapping[str, WorkerCapacity]) -> dict[str, float]:
    """Return each worker's speed as a part of the fastest, in ``STEPS``, since measurements are rough; 1 if unknown."""
    fastest = max((room.speed for room in workers.values()), default=0.0)
    if any(not room.speed for room in workers.values()):
        return dict.fromkeys(workers, 1.0)
    return {name: max(round(STEPS * room.speed / fastest), 1) / STEPS for name, room in workers.items()}


def _everywhere(new: Mapping[str, Placeable], workers: Mapping[str, WorkerCapacity]) -> list[Route]:
    """Return a route of each application for each worker, or for each group of as many workers as its pipeline has stages.

    A group's workers follow each other and have one kind of device. Its stages are cut by memory and speed. Raises
    ValueError if there is no group, or a chain has fewer components than stages.
    """
    speeds, routes = relative_speeds(workers), list[Route]()
    rooms = dict(workers)  # beside the pipelines so far
    for name, one in new.items():
        if one.span == 1:
            routes += place({name: one.components}, list(workers), version=0)
            continue
        for group in _groups(workers, one.span):
            hops = _stages(one, group, rooms, speeds)
            for hop in hops:
                room, tensors = rooms[hop.worker], one.tensors(hop.first, hop.last)
                free = None if room.free is None else room.free - _added(tensors, room)
                rooms[hop.worker] = replace(room, free=free, held=tensors.keys() | room.held)
            routes.append(Route(f"{name}@{'+'.join(group)}", 0, name, hops))
    return routes


def _groups(workers: Mapping[str, WorkerCapacity], span: int) -> list[Sequence[str]]:
    """Return the groups of ``span`` workers. Raises ValueError if there is none, or equal workers are left over."""
    if not workers:
        return []
    kinds: dict[str, list[str]] = {}
    for name, room in workers.items():
        kinds.setdefault(room.kind, []).append(name)
    if len(kinds) == 1 and len(workers) % span:
        raise ValueError(f"{len(workers)} workers cannot form pipelines of {span}; give a divisor")
    groups = [names[i : i + span] for names in kinds.values() for i in range(0, len(names) - span + 1, span)]
    if not groups:
        counts = ", ".join(f"{len(names)} on {kind or 'unknown'}" for kind, names in kinds.items())
        raise ValueError(
            f"{len(workers)} workers cannot form pipelines of {span} on one kind of device ({counts}); lower pipeline, or "
            "add workers"
        )
    order = list(workers)
    return sorted(groups, key=lambda group: order.index(group[0]))


def _stages(
    one: Placeable, group: Sequence[str], rooms: Mapping[str, WorkerCapacity], speeds: Mapping[str, float]
) -> tuple[Hop, ...]:
    """Return the stages of a pipeline: of equal bytes if its workers are alike and that fits."""
    components, rates = one.components, [speeds[worker] for worker in group]
    even = _hops(group, hop_borders(components, len(group)))
    alike = len(set(rates)) == 1
    fits = all(missing_bytes(one, hop, room) <= room.free for hop in even if (room := rooms[hop.worker]).free is not None)
    if alike and fits:
        return even
    borders = uneven_borders(components, rates, [rooms[worker].free for worker in group])
    if not borders and not alike:
        borders = uneven_borders(components, rates, [None] * len(group))
    return _hops(group, borders) if borders else even


def _hops(group: Sequence[str], borders: Sequence[int]) -> tuple[Hop, ...]:
    return tuple(Hop(worker, a, b) for worker, a, b in zip(group, borders[:-1], borders[1:], strict=True))


def uneven_borders(components: Sequence[Component], speeds: Sequence[float], free: Sequence[int | None]) -> list[int]:
    """Cut a chain into a stage for each worker so that the slowest stage is as quick as possible, and each one fits.

    Of equal cuts, the one with larger earlier stages. Every stage has KV if the chain has enough (see ``hop_borders``).
    Returns an empty list if there is no such cut.
    """
    count, span = len(components), len(speeds)
    never = float("inf")
    ahead, caches = [0], [0]
    for component in components:
        ahead.append(ahead[-1] + component.nbytes)
        caches.append(caches[-1] + (component.kv is not None))
    least = 1 if caches[count] >= span else 0

    def seconds(stage: int, first: int, last: int) -> float:
        nbytes, left = ahead[last] - ahead[first], free[stage]
        if first >= last or caches[last] - caches[first] < least or (left is not None and nbytes > left):
            return never
        return nbytes / speeds[stage]

    # best[stage][first]: shortest possible longest stage when components first.. are cut into this stage and the later ones
    best = [[never] * (count + 1) for _ in range(span)] + [[never] * count + [0.0]]
    for stage in range(span - 1, -1, -1):
        for first in range(count):
            lasts = range(first + 1, count + 1)
            best[stage][first] = min(max(seconds(stage, first, last), best[stage + 1][last]) for last in lasts)
    if best[0][0] == never:
        return []
    borders = [0]
    for stage in range(span):
        first = borders[-1]
        cuts = (
            n for n in range(count, first, -1) if max(seconds(stage, first, n), best[stage + 1][n]) <= best[stage][first]
        )
        borders.append(next(cuts))
    return borders


def _needs(routes: Iterable[Route], new: Mapping[str, Placeable]) -> dict[str, dict[bytes, int]]:
    """Return, for each worker, the tensors that these routes need there."""
    found: dict[str, dict[bytes, int]] = {}
    for route in routes:
        for hop in route.hops:
            found.setdefault(hop.worker, {}).update(new[route.application].tensors(hop.first, hop.last))
    return found


def _added(needs: Mapping[bytes, int], room: WorkerCapacity) -> int:
    return sum(nbytes for tensor, nbytes in needs.items() if tensor not in room.held)


def _lack(one: Placeable, hop: Hop, room: WorkerCapacity) -> tuple[int, str]:
    """Return the missing bytes, and the sentence that reports them."""
    need = missing_bytes(one, hop, room) + page_of(one.components, hop)[1]
    if room.free is None:
        return 0, ""
    missing = need - room.free
    return missing, (
        f"it needs {need} bytes on worker {hop.worker} beyond what it shares, but only {room.free} are left besides "
        f"parameters: {missing} bytes are missing; {REMEDY}"
    )
