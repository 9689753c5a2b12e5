"""The routes in force and the version of what is published of them.

Owns the change from planned to in force and back. ``settle`` looks only at the routes that were touched since it last ran.
Gateways and workers are told what changed since the version that they have, a worker of what concerns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ...policies.model.chain import Chain, Route
from ...policies.requests.dispatch import workers_of
from ...policies.requests.load_failure import LoadFailure
from ...policies.sweep.events import RoutesChanged
from .residency import PlannedRoute, Served

KEPT = 64  # publications that a difference can go back


@dataclass(frozen=True, slots=True)
class Change:
    """What one publication changed."""

    version: int
    routes: frozenset[str]  # ids of those that gateways are to hear of
    applications: frozenset[str]
    local: tuple[Route, ...]  # those that their workers are to hear of, as they were or as they are


class Routes:
    """See the module."""

    def __init__(self) -> None:
        self.planned: dict[str, Route] = {}  # by id, of all applications ever served, with all workers up and loaded
        self.in_force: dict[str, Route] = {}  # by id
        self.capacity: dict[str, int] = {}  # route in force -> tokens of one sequence that its workers can hold
        self.most: dict[str, int] = {}  # the same once others are unloaded for it; without those for which none is
        self.version = 0  # of the last publication
        self.touched: dict[str, PlannedRoute] = {}  # by id: they may be in force now and were not, or the other way round
        self.paused: set[str] = set()  # ids of routes that gateways are not told of, though workers serve them
        self.resumed = False  # routes were planned, or are paused no more, since that was last looked at (``Scaling``)
        self._pausing: dict[str, set[str]] = {}  # the same, by who wants it
        self.applications: dict[str, None] = {}  # whose routes in force changed with the last event
        self._chains: list[Chain] = []  # of all applications that were ever served
        self._withdrawn: list[str] = []  # of these, those that are not deployed
        self._draining: list[str] = []  # and those that take no new requests
        self._turned: set[str] = set()  # ids of routes that were paused, or are no longer, since the last publication
        self._on_demand: list[str] = []  # and those that are loaded when they are asked for
        self._failed: list[LoadFailure] = []  # why those that can come nowhere cannot
        self.default = ""  # the id that stands for requests without a model, whether or not it is served
        self._renamed = False  # the default or these five lists differ from the last publication
        self._changed: set[str] = set()  # applications whose chain came, went or differs since then
        self._local: list[Route] = []  # as ``Change`` has it, since then
        self._log: deque[Change] = deque(maxlen=KEPT)  # the last publications

    def list_chains(self, served: Iterable[Served]) -> None:
        """Applications came, went, were cut anew, deployed or withdrawn; ``served``: all that are known."""
        known = [one for one in served if one.shown]
        self.resumed = True
        former_routes, self.planned = self.planned, {p.route.id: p.route for one in known for p in one.planned}
        last = {chain.application: chain for chain in self._chains}
        chains = [_chain(one, last.get(one.application.name)) for one in known]
        withdrawn = [s.application.name for s in known if not s.deployed]
        draining = [s.application.name for s in known if s.draining]
        on_demand = [s.application.name for s in known if s.on_demand]
        failed = [s.failure for s in known if s.deployed and s.failure is not None]
        former = (self._chains, self._withdrawn, self._draining, self._on_demand, self._failed)
        self._renamed |= (chains, withdrawn, draining, on_demand, failed) != former
        here = {chain.application: chain for chain in chains}
        changed = {name for name in last.keys() | here.keys() if last.get(name) != here.get(name)}
        self._local += [route for route in self.planned.values() if route.application in changed]
        for one, other in ((former_routes, self.planned), (self.planned, former_routes)):
            self._local += [route for id, route in one.items() if other.get(id) is not route]
        self._changed.update(changed, {*withdrawn} ^ {*self._withdrawn})  # who comes back is told whole
        self._chains, self._withdrawn, self._draining, self._on_demand = chains, withdrawn, draining, on_demand
        self._failed = failed

    def choose_default(self, model: str) -> None:
        """Let this id stand for requests without a model; gateways hear of it with the next publication."""
        self._renamed |= model != self.default
        self.default = model

    def touch(self, routes: Iterable[PlannedRoute]) -> None:
        self.touched.update((planned.route.id, planned) for planned in routes)

    def pause(self, routes: Iterable[PlannedRoute], paused: bool, by: str) -> None:
        """Gateways start nothing on these, or may again as far as who asks ("drain", "drop", "demand") is concerned; what
        runs goes on."""
        ids, own = {planned.route.id for planned in routes}, self._pausing.get(by, set())
        self._now_paused(own | ids if paused else own - ids, by)

    def resume(self, by: str) -> None:
        """Whatever it wanted paused, also what is planned no more."""
        self._now_paused(set(), by)

    def end(self, routes: Sequence[PlannedRoute]) -> None:
        """These are planned no more, and nobody pauses them."""
        self.touch(routes)
        ids = {planned.route.id for planned in routes}
        for by, own in list(self._pausing.items()):
            self._now_paused(own - ids, by)

    def _now_paused(self, ids: set[str], by: str) -> None:
        self.resumed |= not ids >= self._pausing.get(by, set())
        self._pausing[by] = ids
        before, self.paused = self.paused, set[str]().union(*self._pausing.values())
        self._turned |= before ^ self.paused

    def paused_by(self, by: str) -> Set[str]:
        """Ids of those that it wants paused, whoever else does."""
        return self._pausing.get(by, frozenset())

    def settle(self) -> tuple[str, ...] | None:
        """Bring routes into force and out of it. None when nothing has to be published, else the workers of new routes.

        What was lost and gained again since the last time goes on under its version.
        """
        version, changed, first = self.version + 1, self._turned, dict[str, None]()
        self._turned = set()
        for id, planned in self.touched.items():
            if planned.whole:
                if id not in self.in_force:
                    route = self.in_force[id] = replace(planned.route, version=version)
                    self._local.append(route)
                    first.update(dict.fromkeys(workers_of(route)))
                    planned.served.ever_ready = True
                    self._count(planned.served, 1)
                capacity, most = planned.capacity(), planned.most()
                if (self.capacity.get(id), self.most.get(id, 0)) != (capacity, most):
                    self.capacity[id], self.most[id] = capacity, most
                    changed.add(id)
            elif id in self.in_force:
                del self.in_force[id], self.capacity[id], self.most[id]
                self._count(planned.served, -1)
                changed.add(id)
                self._local.append(planned.route)
        self.touched.clear()
        if not changed and not self._renamed:
            return None
        self._log.append(Change(version, frozenset(changed), frozenset(self._changed), tuple(self._local)))
        self.version, self._renamed, self._local = version, False, []
        self._changed.clear()
        return tuple(first)

    def news(self, since: int = 0) -> RoutesChanged:
        """What ``version`` says to a gateway that has taken version ``since``: what changed, or all where that is too long
        ago; never what can come into force, which only workers prepare for."""
        if self._recent(since):
            return self._difference(since)
        everything = self.publication()
        return replace(everything, planned=[], routes=[route for route in everything.routes if route.id not in self.paused])

    def publication(self) -> RoutesChanged:
        """What ``version`` says."""
        return RoutesChanged(
            self.version,
            list(self._chains),
            list(self.in_force.values()),
            list(self.planned.values()),
            list(self._withdrawn),
            dict(self.capacity),
            list(self._draining),
            on_demand=list(self._on_demand),
            most={id: most for id, most in self.most.items() if most},
            failed=list(self._failed),
            default=self.default,
        )

    def _difference(self, since: int) -> RoutesChanged:
        recent = [change for change in self._log if change.version > since]
        ids = {id for change in recent for id in change.routes}
        applications = {name for change in recent for name in change.applications}
        in_force = sorted((ids & self.in_force.keys()) - self.paused, key=lambda id: (self.in_force[id].version, id))
        return RoutesChanged(
            self.version,
            [chain for chain in self._chains if chain.application in applications],
            [self.in_force[id] for id in in_force],
            [],
            list(self._withdrawn),
            {id: self.capacity[id] for id in in_force},
            list(self._draining),
            since,
            sorted(ids - (self.in_force.keys() - self.paused)),
            sorted(applications - {chain.application for chain in self._chains}),
            list(self._on_demand),
            {id: most for id in in_force if (most := self.most[id])},
            list(self._failed),
            self.default,
        )

    def parts(self, taken: Mapping[str, int]) -> dict[str, RoutesChanged]:
        """What ``version`` says to each of these workers, which have taken other versions: of what concerns it, what changed
        since, or all where that is too long ago."""
        since = {worker: version if self._recent(version) else 0 for worker, version in taken.items()}
        ids: dict[str, dict[str, None]] = {worker: {} for worker in taken}
        oldest = min(filter(None, since.values()), default=self.version)
        changes = [(change.version, change.local) for change in self._log if change.version > oldest]
        if 0 in since.values():
            changes.append((0, tuple(self.planned.values())))
        for version, routes in changes:
            for route in routes:
                for worker in workers_of(route):
                    if worker in since and (since[worker] < version if since[worker] else not version):
                        ids[worker][route.id] = None
        chains = {one.application: replace(one, defaults="") if one.defaults else one for one in self._chains}
        return {worker: self._part(since[worker], list(mine), chains) for worker, mine in ids.items()}

    def _part(self, since: int, ids: list[str], chains: Mapping[str, Chain]) -> RoutesChanged:
        planned = [self.planned[id] for id in ids if id in self.planned]
        names = dict.fromkeys(route.application for route in planned)
        in_force = [self.in_force[id] for id in ids if id in self.in_force]
        ended = [id for id in ids if id not in self.in_force] if since else []
        return RoutesChanged(self.version, [chains[name] for name in names], in_force, planned, since=since, ended=ended)

    def _recent(self, version: int) -> bool:
        """A difference to it can be told."""
        return bool(version and self._log) and version >= self._log[0].version - 1

    def check(self, served: Iterable[Served]) -> None:
        """Raise AssertionError when an invariant is broken; reads everything."""
        assert not self.touched
        everyone = list(served)
        known = [planned for one in everyone for planned in one.planned]
        assert list(self.planned.values()) == [planned.route for one in everyone if one.shown for planned in one.planned]
        for planned in known:
            assert planned.open == sum(not hop.held for hop in planned.hops), planned.route.id
            assert planned.whole == (planned.route.id in self.in_force), planned.route.id
            if planned.whole:
                assert self.capacity[planned.route.id] == planned.capacity(), planned.route.id
                assert self.most[planned.route.id] == planned.most(), planned.route.id
        assert self.most.keys() == self.capacity.keys() == self.in_force.keys() <= {planned.route.id for planned in known}
        for one in everyone:
            assert one.in_force == sum(planned.whole for planned in one.planned), one.application.name
            assert one.ever_ready or not one.in_force, one.application.name

    def _count(self, served: Served, change: int) -> None:
        served.in_force += change
        self.applications[served.application.name] = None


def _chain(served: Served, last: Chain | None) -> Chain:
    """As it is published. Borders of blocks that move are no news: workers find those of their runs themselves."""
    one = served.application
    blocks = served.blocks if last is None else last.blocks
    return Chain(
        one.name,
        blocks,
        one.max_length,
        one.virtual,
        model=one.model,
        checkpoint=one.base or one.checkpoint,
        created=one.created,
        place=served.place,
        base=one.base_model,
        defaults=one.defaults,
        adapter=one.checkpoint if one.base else "",
    )
