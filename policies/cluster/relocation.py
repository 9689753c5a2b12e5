"""Relocation: routes that follow the traffic, so that activations cross from worker to worker as little as possible.

After BlockLLM, section 5.5: greedy by the pairs with most traffic, then local moves that lower the seconds of transfers, at
most ``ROUNDS`` rounds. ``relocate`` returns steps that each fit beside what is there, so that every model serves all the
time. They are worth it if the transfers saved in a window take longer than loading and moving. Pure and deterministic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from ..model.chain import Component, Hop
from .placement import ROUNDS, Draft

Hops = tuple[Hop, ...]
LOAD_RATE = 250e6  # bytes of parameters that a worker loads in a second, where that was not measured
STEP_SECONDS = 0.05  # of the requests that move in one step, and of the caches that they leave
WIDEST = 6  # workers among which pipelines are tried: the ones with most room
FEW, BEAM = 8, 24  # most applications for a beam search, and its width
SHORT = 8  # cuts of a chain that are all tried
PARTNERS = 16  # applications that are tried in exchange for one: the ones with least traffic


class TransferCost(NamedTuple):
    """The cost of a placement by its traffic; smaller is better, and the first difference counts."""

    unserved: int  # applications without a route
    seconds: float  # of transfers in a window, each application on its best route
    loaded: int  # bytes of parameters that are not there yet
    nbytes: int  # bytes of parameters on all workers


@dataclass(frozen=True, slots=True)
class RelocatableChains:
    """The chains to place, and the room for them.

    memory: worker -> bytes for parameters. seconds: by application, what it costs in a window to cross before each component
    (``traffic.py``). kinds: worker -> kind of its device; pipelines stay within one. fixed: what else workers hold. spare:
    worker -> bytes beside ``memory`` that KV gives while routes begin, until others end. here: worker -> components that
    are there now. speeds: worker -> bytes of parameters that it loads in a second, where that was measured.
    """

    chains: Mapping[str, Sequence[Component]]
    memory: Mapping[str, int]
    seconds: Mapping[str, Sequence[float]]
    kinds: Mapping[str, str] = field(default_factory=dict)
    fixed: Sequence[tuple[Sequence[Component], Hop]] = ()
    spare: Mapping[str, int] = field(default_factory=dict)
    here: Mapping[str, Collection[bytes]] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    _holders: dict[bytes, frozenset[str]] = field(init=False, default_factory=dict)
    _loaded: dict[tuple[str, Hops], int] = field(init=False, default_factory=dict)  # as ``loaded`` returned it
    _made: list[Draft] = field(init=False, default_factory=list)  # the draft of what is fixed, once it is asked for

    def __post_init__(self) -> None:
        for name, components in self.chains.items():
            for shared in {component.shared for component in components}:
                self._holders[shared] = self._holders.get(shared, frozenset()) | {name}

    def borders(self, name: str, head: Sequence[int], tail: Sequence[int], rooms: tuple[int, int]) -> list[int]:
        """Return the depths at which a chain can be cut between two workers with these rooms.

        They are the first and the last one that fit, and the ones between at which sharing changes. head, tail: bytes of the
        components before each depth that each of the two lacks.
        """
        components = self.chains[name]
        caches = [depth for depth, component in enumerate(components) if component.kv is not None] or [
            0,
            len(components) - 1,
        ]
        fit = [d for d in range(caches[0] + 1, caches[-1] + 1) if head[d] <= rooms[0] and tail[-1] - tail[d] <= rooms[1]]
        if len(fit) <= SHORT:
            return fit
        return [d for d in fit if d in (fit[0], fit[-1]) or self._users(components[d - 1]) != self._users(components[d])]

    def caches(self, name: str) -> list[int]:
        """Return the depths with KV, one of which each hop has; all depths if there are none."""
        components = self.chains[name]
        return [d for d, component in enumerate(components) if component.kv is not None] or [*range(len(components))]

    def _users(self, component: Component) -> frozenset[str]:
        return self._holders.get(component.shared, frozenset())

    def draft(self, routes: Mapping[str, Sequence[Hops]] = MappingProxyType({}), *, spare: bool = False) -> Draft:
        """Return a draft with what is fixed and these routes. ``spare``: with all of the room."""
        draft = self._fixed_draft()
        if spare:
            draft.widen(self.spare)
        for name, those in routes.items():
            for hops in those:
                draft.put(name, hops)
        return draft

    def _fixed_draft(self) -> Draft:
        if not self._made:
            stays = {f"\0{n}": one for n, one in enumerate(self.fixed)}  # not the name of an application
            draft = Draft({**self.chains, **{name: components for name, (components, _) in stays.items()}}, self.memory)
            for name, (_, hop) in stays.items():
                draft.put(name, (hop,))
            self._made.append(draft)
        return self._made[0].copy()

    def routes(self, draft: Draft, name: str) -> list[Hops]:
        """Return the routes of an application."""
        return list(draft.hops.get(name, ()))

    def cost(self, draft: Draft) -> TransferCost:
        """Return the cost of a draft."""
        there = [name for name in self.chains if name in draft.hops]
        seconds = sum([self.least(name, draft.hops[name]) for name in there])
        loaded = sum([self.loaded(name, hops) for name in there for hops in draft.hops[name]])
        return TransferCost(len(self.chains) - len(there), seconds, loaded, sum(draft.used.values()))

    def crossing(self, name: str, hops: Hops) -> float:
        """Return the seconds of transfers on a route."""
        return sum([self.seconds[name][hop.first] for hop in hops[1:]])

    def loaded(self, name: str, hops: Hops) -> int:
        """Return the bytes of a route that are not where it needs them now; 0 if nothing is known of now."""
        if not self.here:
            return 0
        if (name, hops) not in self._loaded:
            lacking = [(self.here.get(hop.worker, ()), self.chains[name][hop.first : hop.last]) for hop in hops]
            self._loaded[name, hops] = sum([c.nbytes for there, parts in lacking for c in parts if c.shared not in there])
        return self._loaded[name, hops]

    def least(self, name: str, routes: Sequence[Hops]) -> float:
        """Return the seconds of transfers on the best of several routes."""
        return min([self.crossing(name, hops) for hops in routes])


@dataclass(frozen=True, slots=True)
class Relocation:
    """One step: routes of an application that begin, and then the ones that end."""

    application: str
    begin: tuple[Hops, ...]
    end: tuple[Hops, ...]


@dataclass(frozen=True, slots=True)
class RelocationPlan:
    """Steps in order. saved: seconds of transfers in a window. cost: seconds of loading and moving."""

    steps: tuple[Relocation, ...]
    saved: float
    cost: float

    @property
    def worth(self) -> bool:
        return self.saved > self.cost


def relocate(zoo: RelocatableChains, current: Mapping[str, Sequence[Hops]]) -> RelocationPlan | None:
    """Return the steps to routes with less traffic between workers, worth it or not; None if none can be taken.

    ``current``: the routes of each application. If no order of the whole change fits, it is the best change of a single
    application.
    """
    now = zoo.draft(current)
    if not zoo.cost(now).seconds:
        return None
    here: dict[str, set[bytes]] = {worker: set() for worker in zoo.memory}
    for name, hop in [(name, hop) for name, routes in current.items() for hops in routes for hop in hops]:
        here[hop.worker].update(component.shared for component in zoo.chains[name][hop.first : hop.last])
    zoo = replace(zoo, here=here)
    target = cluster(zoo, current)
    plans = [_plan(zoo, current, {name: zoo.routes(target, name) for name in current})]
    if plans[0] is None or not plans[0].worth:
        plans += [_plan(zoo, current, {**current, **one}) for one in _single_changes(zoo, now, current)]
    return max((one for one in plans if one is not None), key=lambda one: one.saved - one.cost, default=None)


def cluster(zoo: RelocatableChains, current: Mapping[str, Sequence[Hops]] = MappingProxyType({})) -> Draft:
    """Return the draft of least transfers that greedy starts and local moves find. ``current``: one more start.

    It has one route of each application, and the whole ones of ``current`` that still fit.
    """
    heavy = sorted(zoo.chains, key=lambda name: (-max(zoo.seconds[name], default=0.0), -_size(zoo, name), name))
    large = sorted(zoo.chains, key=lambda name: (-_size(zoo, name), name))
    best_of = {
        name: [min(routes, key=lambda hops: (zoo.crossing(name, hops), len(hops)))]
        for name, routes in current.items()
        if routes
    }
    drafts = [zoo.draft(best_of)] if current else []
    for order in (heavy, large, large[::-1]):
        draft = zoo.draft()
        for name in order:
            _put_best(zoo, draft, name)
        drafts.append(draft)
    if not current and len(zoo.chains) <= FEW:
        drafts.append(_beam(zoo, heavy))
    for draft in drafts:
        _improve(zoo, draft)
    best = min(drafts, key=zoo.cost)
    for name, routes in current.items():
        for hops in routes:
            if len(hops) == 1 and hops not in best.hops.get(name, ()) and best.fits(name, hops[0]):
                best.put(name, hops)
    return best


def _beam(zoo: RelocatableChains, order: Sequence[str]) -> Draft:
    """Return the draft that a beam search finds: of the best beginnings, each is tried with all routes of the next one.

    So a chain may cross where others can then share what it holds.
    """
    beam: list[dict[str, list[Hops]]] = [{}]
    for name in order:
        tried: dict[tuple[TransferCost, int], dict[str, list[Hops]]] = {}
        for routes in beam:
            draft = zoo.draft(routes)
            for hops, _ in [*ways(zoo, draft, name)]:
                draft.put(name, hops)
                tried[zoo.cost(draft), len(tried)] = {**routes, name: [hops]}
                draft.take_back(name)
            tried[zoo.cost(draft), len(tried)] = routes  # it may have to stay without
        beam = [tried[key] for key in sorted(tried)[:BEAM]]
    return zoo.draft(beam[0])


def ways(zoo: RelocatableChains, draft: Draft, name: str) -> Iterator[tuple[Hops, int]]:
    """Yield the routes of a chain for which there is room, whole ones first, with the bytes that each adds.

    All pipelines pass the workers in one order, and each hop has KV if the chain has any. None has more hops than it needs.
    """
    count = len(zoo.chains[name])
    for worker in zoo.memory:
        whole = draft.whole(name, worker)
        if (added := draft.added(name, whole)) <= draft.free(worker):
            yield (whole,), added
    roomy = {*sorted(zoo.memory, key=lambda worker: -draft.free(worker))[:WIDEST]}
    workers = [worker for worker in zoo.memory if worker in roomy]
    lacks = {worker: draft.lacks(name, worker) for worker in workers}
    some, caches = False, zoo.caches(name)
    for one, other in combinations(workers, 2):
        if zoo.kinds.get(one) == zoo.kinds.get(other):
            head, tail = lacks[one], lacks[other]
            rooms = draft.free(one), draft.free(other)
            for border in zoo.borders(name, head, tail, rooms):
                some = True
                yield (Hop(one, 0, border), Hop(other, border, count)), head[border] + tail[count] - tail[border]
    for number in range(3, len(workers) + 1):
        for those in combinations(workers, number) if not some else ():
            if len({zoo.kinds.get(worker) for worker in those}) == 1 and (hops := _filled(lacks, draft, those, caches)):
                some = True
                yield hops, sum([lacks[hop.worker][hop.last] - lacks[hop.worker][hop.first] for hop in hops])


def _filled(lacks: Mapping[str, Sequence[int]], draft: Draft, workers: Sequence[str], caches: Sequence[int]) -> Hops:
    """Return hops in this order of workers, each as long as there is room and with KV; () if the chain does not fit."""
    hops, first = list[Hop](), 0
    for left, worker in zip(range(len(workers) - 1, -1, -1), workers, strict=True):
        before = lacks[worker]
        last = bisect_right(before, before[first] + draft.free(worker)) - 1
        if left:  # each worker behind needs a component with KV
            last = min(last, caches[-left] if len(caches) > left else first)
        if not any(first <= depth < last for depth in caches):
            return ()
        hops.append(Hop(worker, first, last))
        first = last
    return tuple(hops) if first == len(lacks[workers[0]]) - 1 else ()


def _size(zoo: RelocatableChains, name: str) -> int:
    return sum({c.shared: c.nbytes for c in zoo.chains[name]}.values())


def _put_best(zoo: RelocatableChains, draft: Draft, name: str) -> bool:
    """Put an application where it crosses least, loads least, adds least and least room is left, in this order."""
    best: tuple[tuple[float, int, int, int], Hops] | None = None
    for hops, added in ways(zoo, draft, name):
        if len(hops) > 1 and best is not None and len(best[1]) == 1:
            break  # a whole one does not cross
        room = sum([draft.free(hop.worker) for hop in hops])
        key = zoo.crossing(name, hops), zoo.loaded(name, hops), added, room
        if best is None or key < best[0]:
            best = key, hops
    if best is None:
        return False
    draft.put(name, best[1])
    return True


def _improve(zoo: RelocatableChains, draft: Draft) -> None:
    """Move applications until nothing helps or the rounds are over.

    They move alone, in exchange for another one, and, if they have no route, in exchange for two.
    """
    light = sorted(zoo.chains, key=lambda name: (max(zoo.seconds[name], default=0.0), name))
    for _ in range(ROUNDS):
        before = zoo.cost(draft)
        for name in zoo.chains:
            _try(zoo, draft, (name,))
        for name in [one for one in zoo.chains if _crosses(zoo, draft, one)]:
            others = [one for one in light if one != name][:PARTNERS]
            for those in [*((one,) for one in others), *combinations(others, 2)]:
                if name not in draft.hops or (len(those) == 1 and _crosses(zoo, draft, name)):
                    _try(zoo, draft, (name, *those))
                if name not in draft.hops:
                    _try(zoo, draft, (*those, name))
        if zoo.cost(draft) >= before:
            break


def _crosses(zoo: RelocatableChains, draft: Draft, name: str) -> bool:
    """Return whether an application has no route, or one with transfers."""
    return name not in draft.hops or zoo.least(name, draft.hops[name]) > 0


def _try(zoo: RelocatableChains, draft: Draft, names: Sequence[str]) -> None:
    """Put these applications anew, the first one first, if the whole is better then."""
    before = zoo.cost(draft)
    former = {name: [draft.take_back(name) for _ in zoo.routes(draft, name)] for name in names}
    put = [name for name in names if _put_best(zoo, draft, name)]
    if zoo.cost(draft) < before:
        return
    for name in put:
        draft.take_back(name)
    for name, routes in former.items():
        for hops in reversed(routes):
            draft.put(name, hops)


def _single_changes(
    zoo: RelocatableChains, now: Draft, current: Mapping[str, Sequence[Hops]]
) -> Iterator[Mapping[str, Sequence[Hops]]]:
    """Yield, for each application that crosses, its best route beside the others' routes."""
    for name in [one for one in current if _crosses(zoo, now, one)]:
        former = [now.take_back(name) for _ in zoo.routes(now, name)]
        if _put_best(zoo, now, name):
            yield {name: [now.take_back(name)]}
        for hops in reversed(former):
            now.put(name, hops)


def _plan(
    zoo: RelocatableChains, current: Mapping[str, Sequence[Hops]], target: Mapping[str, Sequence[Hops]]
) -> RelocationPlan | None:
    """Return the steps to a target that crosses less, if there is an order in which each fits; else None."""
    if not all(target[name] for name in current):
        return None
    draft, steps = zoo.draft(current, spare=True), list[Relocation]()
    loading = 0.0
    before = zoo.cost(draft).seconds
    waiting = [_step(name, routes, target[name]) for name, routes in current.items()]
    waiting = sorted((one for one in waiting if one.begin or one.end), key=lambda one: (len(one.begin), one.application))
    while waiting:
        for one in waiting:
            if (seconds := _take(draft, one, zoo.speeds)) is not None:
                break
        else:
            return None
        loading += seconds
        waiting.remove(one)
        steps.append(one)
    saved, cost = before - zoo.cost(draft).seconds, loading + len(steps) * STEP_SECONDS
    return RelocationPlan(tuple(steps), saved, cost) if steps and saved > 0 else None


def _step(name: str, routes: Sequence[Hops], target: Sequence[Hops]) -> Relocation:
    begin, end = [hops for hops in target if hops not in routes], [hops for hops in routes if hops not in target]
    return Relocation(name, tuple(begin), tuple(end))


def _take(draft: Draft, step: Relocation, speeds: Mapping[str, float]) -> float | None:
    """Carry out a step in a draft and return the seconds of its loads; None, and nothing has changed, if it does not fit."""
    name, seconds = step.application, 0.0
    for n, hops in enumerate(step.begin):
        if not all(draft.fits(name, hop) for hop in hops):
            for _ in range(n):
                draft.take_back(name)
            return None
        seconds += sum([draft.added(name, hop) / speeds.get(hop.worker, LOAD_RATE) for hop in hops])
        draft.put(name, hops)
    for hops in step.end:
        draft.take_back(name, draft.hops[name].index(hops))
    return seconds
