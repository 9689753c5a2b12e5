"""Assignment of a new application to workers: to all if memory allows, else where it fits.

Owns the rules by which the controller uses ``placement.py``. An application that fits on every worker goes to every
worker. Otherwise, applications that are added together are placed by memory and locality; a single one goes to each worker
with room for it; and a new worker gets whatever fits there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..model.chain import Component, Hop, Route
from ..model.partition import place
from .placement import place_by_locality

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
    """A worker's memory.

    free: bytes besides its parameters; None: unknown. held: the tensors to be placed that it holds or will hold.
    """

    free: int | None
    held: Collection[bytes]


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
    routes = place({name: one.components}, list(workers), {name: one.span}, version=0)
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


def routes_of_all(new: Mapping[str, Placeable], workers: Mapping[str, WorkerCapacity]) -> list[Route]:
    """Return routes of applications that are added together.

    An application that fits nowhere is planned everywhere: the workers refuse it in their words. If not everything fits,
    each worker keeps room for a sequence of the greatest length, if that leaves no application out, else for a page.
    """
    chains, spans = {name: one.components for name, one in new.items()}, {name: one.span for name, one in new.items()}
    everywhere = place(chains, list(workers), spans, version=0)
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
    for kept in (longest, page):
        routes = place_by_locality(single, {name: free[name] - kept for name in workers}, {}, version=0)
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
