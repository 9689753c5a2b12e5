"""Placement: which applications go on which workers, if not everything fits on each of them.

After BlockLLM, section 5.5: greedy by locality, then local moves. Components that applications share are stored once in a
worker's memory, so applications with much in common belong together; a chain spread over workers costs a transfer for each
hop and request. ``Cost`` orders placements: first more served, then fewer transfers, then less memory. Memory that is left
holds replicas of the most loaded applications; so if everything fits everywhere, everything goes everywhere. Pure and
deterministic: equal inputs give equal answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, combinations
from types import MappingProxyType
from typing import NamedTuple

from ..model.chain import Component, Hop, Route

ROUNDS = 10  # limit of rounds of local moves, as in the paper; most zoos need two or three


class Cost(NamedTuple):
    """The cost of a placement; smaller is better, and the first difference counts."""

    unserved: int  # applications without a route
    transfers: float  # sum over applications: load times hops beyond the first, on the best route
    nbytes: int  # bytes of parameters on all workers
    longest: float = 0.0  # bytes divided by speed, of the worker where that is most; 0 if all are equally fast


class Draft:
    """A placement in the making: hops by application, and the memory they take on each worker.

    speeds: of each worker, as a part of the fastest; empty: all are equally fast.
    """

    def __init__(
        self,
        chains: Mapping[str, Sequence[Component]],
        memory: Mapping[str, int],
        speeds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.chains, self._memory = chains, memory
        self.speeds = speeds if len(set(speeds.values())) > 1 else {}
        self.hops: dict[str, list[tuple[Hop, ...]]] = {}  # routes of each application; the first was placed first
        # for each worker: component or delta -> number of hops that need it
        self._held: dict[str, dict[bytes, int]] = {worker: {} for worker in memory}
        self._needs: dict[tuple[str, int, int], dict[bytes, int]] = {}  # cache of ``needs``
        self._parts: dict[str, list[list[tuple[bytes, int]]]] = {}  # parameters of each component of a chain
        self.used = dict.fromkeys(memory, 0)  # bytes

    def copy(self) -> Draft:
        """Return an independent copy."""
        made = Draft(self.chains, self._memory, self.speeds)
        made.hops = {name: [*routes] for name, routes in self.hops.items()}
        made._held = {worker: {**held} for worker, held in self._held.items()}
        made._needs, made._parts = self._needs, self._parts
        made.used = {**self.used}
        return made

    def widen(self, more: Mapping[str, int]) -> None:
        """Give workers more memory."""
        self._memory = {worker: nbytes + more.get(worker, 0) for worker, nbytes in self._memory.items()}

    def needs(self, name: str, hop: Hop) -> dict[bytes, int]:
        """Return the bytes of each parameter of a hop."""
        key = name, hop.first, hop.last
        if key not in self._needs:
            self._needs[key] = dict(_parameters(self.chains[name][hop.first : hop.last]))
        return self._needs[key]

    def added(self, name: str, hop: Hop) -> int:
        """Return the additional bytes on a worker with this hop."""
        held = self._held[hop.worker]
        return sum([nbytes for part, nbytes in self.needs(name, hop).items() if part not in held])

    def lacks(self, name: str, worker: str) -> list[int]:
        """Return, for each depth of a chain, the bytes of the components before it that a worker lacks."""
        held = self._held[worker]
        if name not in self._parts:
            self._parts[name] = [[*_parameters((component,))] for component in self.chains[name]]
        return [0, *accumulate([sum([n for part, n in one if part not in held]) for one in self._parts[name]])]

    def free(self, worker: str) -> int:
        return self._memory[worker] - self.used[worker]

    def fits(self, name: str, hop: Hop) -> bool:
        return self.added(name, hop) <= self.free(hop.worker)

    def whole(self, name: str, worker: str) -> Hop:
        return Hop(worker, 0, len(self.chains[name]))

    def put(self, name: str, hops: tuple[Hop, ...]) -> None:
        """Add a route."""
        for hop in hops:
            self.used[hop.worker] += self.added(name, hop)
            held = self._held[hop.worker]
            for part in self.needs(name, hop):
                held[part] = held.get(part, 0) + 1
        self.hops.setdefault(name, []).append(hops)

    def take_back(self, name: str, route: int = -1) -> tuple[Hop, ...]:
        """Withdraw a route of an application, by default the last one, and return it."""
        hops = self.hops[name].pop(route)
        if not self.hops[name]:
            del self.hops[name]
        for hop in hops:
            held = self._held[hop.worker]
            for part in self.needs(name, hop):
                held[part] -= 1
                if not held[part]:
                    del held[part]
            self.used[hop.worker] -= self.added(name, hop)
        return hops

    def nearest(self, name: str) -> str | None:
        """Return the worker with room for the whole chain that holds most of it.

        Of equals, the one with most room left; of unequally fast ones, the one that then passes its parameters soonest.
        """
        added = {worker: self.added(name, self.whole(name, worker)) for worker in self._memory}
        fitting = [worker for worker in added if added[worker] <= self.free(worker)]
        return min(fitting, key=lambda worker: (added[worker], self._strain(worker, added[worker])), default=None)

    def _strain(self, worker: str, added: int) -> float:
        if not self.speeds:
            return -self.free(worker)
        return (self.used[worker] + added) / self.speeds[worker]

    def rank(self, name: str, worker: str) -> tuple[float, float]:
        """Return the key by which the least is the best worker for one more replica."""
        added = self.added(name, self.whole(name, worker))
        return added, self._strain(worker, added) if self.speeds else self.used[worker]

    def power(self, name: str) -> float:
        """Return the number of an application's routes, each counted with the speed of its slowest worker."""
        return sum(min(self.speeds.get(hop.worker, 1.0) for hop in hops) for hops in self.hops[name])

    def first(self, name: str) -> str | None:
        """Return the first worker with room for the whole chain."""
        return next((worker for worker in self._memory if self.fits(name, self.whole(name, worker))), None)

    def cost(self, load: Mapping[str, float]) -> Cost:
        transfers = sum(load.get(name, 1.0) * (min(map(len, routes)) - 1) for name, routes in self.hops.items())
        longest = max((self.used[worker] / speed for worker, speed in self.speeds.items()), default=0.0)
        return Cost(len(self.chains) - len(self.hops), transfers, sum(self.used.values()), longest)


def place_by_locality(
    chains: Mapping[str, Sequence[Component]],
    memory: Mapping[str, int],
    load: Mapping[str, float],
    version: int = 1,
    speeds: Mapping[str, float] = MappingProxyType({}),
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> list[Route]:
    """Return routes of every application that can be served at all; the others fit nowhere.

    Args:
        chains: application -> components in order.
        memory: worker -> bytes for parameters (the need of KV is already subtracted).
        load: application -> expected requests in any unit; 1 if absent.
        speeds: see ``Draft``.
        kinds: worker -> kind of its device; pipelines stay within one. Absent: all are of one kind.
    """
    draft = best_draft(chains, memory, load, speeds, kinds)
    _replicate(draft, memory, load)
    return _routes(draft, chains, memory, version)


def _routes(draft: Draft, chains: Iterable[str], memory: Iterable[str], version: int) -> list[Route]:
    """Return the routes of a draft, in the order of applications and workers."""
    place = {worker: n for n, worker in enumerate(memory)}
    return [
        Route(f"{name}@{'+'.join(hop.worker for hop in hops)}", version, name, hops)
        for name in chains
        for hops in sorted(draft.hops.get(name, ()), key=lambda hops: [place[hop.worker] for hop in hops])
    ]


def place_by_room(
    chains: Mapping[str, Sequence[Component]],
    memory: Mapping[str, int],
    load: Mapping[str, float] = MappingProxyType({}),
    version: int = 1,
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> list[Route]:
    """Return routes as ``place_by_locality`` does, placed for the least fragmentation of memory.

    Each chain, the largest first, goes where least room is left, whatever is there; one that fits whole nowhere goes to the
    workers with most room.
    """
    draft = draft_by_room(chains, memory, kinds)
    _replicate(draft, memory, load)
    return _routes(draft, chains, memory, version)


def draft_by_room(
    chains: Mapping[str, Sequence[Component]], memory: Mapping[str, int], kinds: Mapping[str, str] = MappingProxyType({})
) -> Draft:
    """Return the draft of ``place_by_room``, with one route of each application."""
    draft = Draft(chains, memory)
    alike: dict[str, list[str]] = {}
    for worker in memory:
        alike.setdefault(kinds.get(worker, ""), []).append(worker)
    for name in sorted(chains, key=lambda name: -_size(chains[name])):
        fitting = [worker for worker in memory if draft.fits(name, draft.whole(name, worker))]
        worker = min(fitting, key=draft.free, default="")
        if hops := (draft.whole(name, worker),) if worker else _shortest(draft, name, alike.values()):
            draft.put(name, hops)
    return draft


def best_draft(
    chains: Mapping[str, Sequence[Component]],
    memory: Mapping[str, int],
    load: Mapping[str, float],
    speeds: Mapping[str, float] = MappingProxyType({}),
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> Draft:
    """Return the draft of least ``Cost``, with one route of each application.

    The start by locality is not the best one for every zoo, and a move that saves memory may take the room that a pipeline
    needs. So some other orders are tried too, first fit among them, and the best result counts.
    """
    large = sorted(chains, key=lambda name: -_size(chains[name]))
    starts = [(_pairs(chains, load), True), (large, True), (large[::-1], True), (list(chains), True), (list(chains), False)]
    drafts = []
    alike: dict[str, list[str]] = {}
    for worker in memory:
        alike.setdefault(kinds.get(worker, ""), []).append(worker)
    for order, nearest in starts:
        for moves in (True, False):
            draft = Draft(chains, memory, speeds)
            for name in order:
                _put_whole(draft, name, nearest=nearest)
            if moves:
                _move(draft, load)
            _spread_rest(draft, alike, load, in_order=not (nearest or moves))
            drafts.append(draft)
    return min(drafts, key=lambda draft: draft.cost(load))


def _parameters(components: Iterable[Component]) -> Iterator[tuple[bytes, int]]:
    """Yield what has to be in memory, and its bytes: components that are shared by all their variants, and deltas."""
    for component in components:
        yield component.shared, component.nbytes
        if component.delta:
            yield component.delta, component.delta_nbytes


def _size(components: Iterable[Component]) -> int:
    return sum(dict(_parameters(components)).values())


def _pairs(chains: Mapping[str, Sequence[Component]], load: Mapping[str, float]) -> list[str]:
    """Return applications in the order of the pairs that share most, each once; of equals, the more loaded first."""
    sizes = {name: dict(_parameters(components)) for name, components in chains.items()}
    shared: dict[tuple[str, str], int] = {}
    for a, b in combinations(chains, 2):
        shared[a, b] = sum(sizes[a][part] for part in sizes[a].keys() & sizes[b].keys())
    pairs = sorted(shared, key=lambda pair: (-shared[pair], -load.get(pair[0], 1.0) - load.get(pair[1], 1.0)))
    return list(dict.fromkeys([name for pair in pairs for name in pair] or chains))


def _put_whole(draft: Draft, name: str, *, nearest: bool = True) -> bool:
    worker = draft.nearest(name) if nearest else draft.first(name)
    if worker is None:
        return False
    draft.put(name, (draft.whole(name, worker),))
    return True


def _move(draft: Draft, load: Mapping[str, float]) -> None:
    """Move applications to better workers, and make room for unplaced ones, until nothing helps."""
    for _ in range(ROUNDS):
        before = draft.cost(load)
        for name in list(draft.hops):
            draft.take_back(name)
            _put_whole(draft, name)  # it fits at least where it was
        for name in draft.chains:
            if name not in draft.hops and not _put_whole(draft, name):
                _make_room(draft, name)
        if draft.cost(load) >= before:
            break


def _make_room(draft: Draft, name: str) -> None:
    """Put ``name`` in the place of another application that has one elsewhere."""
    for other in list(draft.hops):
        worker = draft.hops[other][0][0].worker
        back = draft.take_back(other)
        if draft.fits(name, draft.whole(name, worker)):
            draft.put(name, (draft.whole(name, worker),))
            if _put_whole(draft, other):
                return
            draft.take_back(name)
        draft.put(other, back)


def _spread_rest(draft: Draft, alike: Mapping[str, Sequence[str]], load: Mapping[str, float], *, in_order: bool) -> None:
    """Make pipelines of applications that fit whole nowhere: always the one that then takes the least additional memory.

    Of equals, the most loaded goes first. ``in_order``: take them in the given order instead. ``alike``: the workers of each
    kind of device, among which a pipeline stays.
    """
    rest = {name for name in draft.chains if name not in draft.hops}
    while rest:
        found = {name: hops for name in sorted(rest) if (hops := _shortest(draft, name, alike.values()))}
        if not found:
            return
        name = min(found, key=lambda name: (sum(draft.added(name, hop) for hop in found[name]), -load.get(name, 1.0)))
        if in_order:
            name = next(name for name in draft.chains if name in found)
        draft.put(name, found[name])
        rest.remove(name)


def _shortest(draft: Draft, name: str, groups: Iterable[Sequence[str]]) -> tuple[Hop, ...]:
    """Return the pipeline of fewest workers, all of them in one group; () if it fits in none."""
    return min(filter(None, (pipeline(draft, name, workers) for workers in groups)), key=len, default=())


def pipeline(draft: Draft, name: str, workers: Sequence[str]) -> tuple[Hop, ...]:
    """Return a chain over as few workers as possible, those with most room; () if it does not fit.

    All pipelines pass the workers in one order: the first of them are homes, and plan for the others.
    """
    by_room = sorted(workers, key=lambda worker: -draft.free(worker))
    for count in range(2, len(workers) + 1):
        chosen = set(by_room[:count])
        if hops := _fill(draft, name, [worker for worker in workers if worker in chosen]):
            return hops
    return ()


def _fill(draft: Draft, name: str, workers: Sequence[str]) -> tuple[Hop, ...]:
    """Return hops in this order of workers, each as long as there is room.

    Each hop has KV if the chain has any (a home without KV could skip no pages).
    """
    caches = [d for d, component in enumerate(draft.chains[name]) if component.kv is not None]
    hops: list[Hop] = []
    first, end = 0, len(draft.chains[name])
    for worker in workers:
        last = first
        while last < end and draft.fits(name, Hop(worker, first, last + 1)):
            last += 1
        if caches and first < last < end and caches[-1] < last:  # leave a component with KV for the next hop
            last = caches[-1]
        if last > first and (not caches or any(first <= d < last for d in caches)):
            hops.append(Hop(worker, first, last))
            first = last
        if first == end:
            return tuple(hops)
    return ()


def _replicate(draft: Draft, memory: Mapping[str, int], load: Mapping[str, float]) -> None:
    """Fill the remaining memory with replicas of the application with the most load per replica, as long as one fits."""
    candidates = {name for name, routes in draft.hops.items() if len(routes[0]) == 1}
    while candidates:
        name = max(sorted(candidates), key=lambda name: load.get(name, 1.0) / draft.power(name))
        here = {hop.worker for hops in draft.hops[name] for hop in hops}
        fitting = [w for w in memory if w not in here and draft.fits(name, draft.whole(name, w))]
        if not fitting:
            candidates.discard(name)
            continue
        draft.put(name, (draft.whole(name, min(fitting, key=partial(draft.rank, name))),))
