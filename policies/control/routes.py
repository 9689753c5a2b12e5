"""The routing table of the controller: routes in force, and the version of what is published of them.

Owns the change from planned to in force and back. ``settle`` looks only at routes touched since its last run. Gateways and
workers get the changes since the version that they have; a worker gets only what concerns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..adaptive.variants import folder_and_swaps
from ..model.chain import Chain, Route
from ..model.tiers import folder_and_layers
from ..requests.dispatch import workers_of
from ..requests.load_failure import LoadFailure
from ..requests.routes_changed import RoutesChanged
from .residency import PlannedRoute, Served

KEPT = 64  # publications kept for differences


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one publication."""

    version: int
    routes: frozenset[str]  # ids of routes that gateways must hear of
    applications: frozenset[str]
    local: tuple[Route, ...]  # routes that their workers must hear of, as they were or as they are


class Routes:
    """The routes of one cluster (see the module)."""

    def __init__(self) -> None:
        self.planned: dict[str, Route] = {}  # by id: all applications, with all workers up and loaded
        self.in_force: dict[str, Route] = {}  # by id
        self.capacity: dict[str, int] = {}  # route in force -> tokens of one sequence that its workers can hold
        self.capacity_alone: dict[str, int] = {}  # the same after unloading others; 0: none is unloaded
        self.version = 0  # version of the last publication
        self.unsettled: dict[str, PlannedRoute] = {}  # by id: routes that may have come into force or gone out of it
        self.paused: set[str] = set()  # ids of routes hidden from gateways although workers serve them
        self.applications: dict[str, None] = {}  # applications whose routes in force changed with the last event
        self._chains: list[Chain] = []  # chains of all known applications
        self._withdrawn: list[str] = []  # applications that are not deployed
        self._draining: list[str] = []  # applications that take no new requests
        self._turned: set[str] = set()  # ids of routes paused or resumed since the last publication
        self._on_demand: list[str] = []  # applications loaded on demand
        self._failed: list[LoadFailure] = []  # failures of applications that can load nowhere
        self._load_seconds: dict[str, float] = {}  # as in ``Served``, where they are known
        self.default = ""  # id for requests without a model, served or not
        self._renamed = False  # the default or these six collections differ from the last publication
        self._changed: set[str] = set()  # applications whose chain came, went or changed since then
        self._local: list[Route] = []  # as in ``Change``, since then
        self._log: deque[Change] = deque(maxlen=KEPT)  # the last publications

    def list_chains(self, served: Iterable[Served]) -> None:
        """Update the chains after applications came, went, were cut anew, deployed or withdrawn.

        ``served``: all known ones.
        """
        known = [one for one in served if one.shown]
        former_routes, self.planned = self.planned, {p.route.id: p.route for one in known for p in one.planned}
        last = {chain.application: chain for chain in self._chains}
        chains = [_listed(one, last.get(one.application.name)) for one in known]
        withdrawn = [s.application.name for s in known if not s.deployed]
        draining = [s.application.name for s in known if s.draining]
        on_demand = [s.application.name for s in known if s.on_demand]
        failed = [s.failure for s in known if s.deployed and s.failure is not None]
        load_seconds = {s.application.name: s.load_seconds for s in known if s.on_demand and s.load_seconds}
        former = (self._chains, self._withdrawn, self._draining, self._on_demand, self._failed, self._load_seconds)
        self._renamed |= (chains, withdrawn, draining, on_demand, failed, load_seconds) != former
        here = {chain.application: chain for chain in chains}
        changed = {name for name in last.keys() | here.keys() if last.get(name) is not here.get(name)}
        self._local += [route for route in self.planned.values() if route.application in changed]
        for one, other in ((former_routes, self.planned), (self.planned, former_routes)):
            self._local += [route for id, route in one.items() if other.get(id) is not route]
        self._changed.update(changed, {*withdrawn} ^ {*self._withdrawn})  # an application that returns is published whole
        self._chains = chains
        self._withdrawn = withdrawn
        self._draining = draining
        self._on_demand = on_demand
        self._failed = failed
        self._load_seconds = load_seconds

    def choose_default(self, model: str) -> None:
        """Set the id for requests without a model; gateways hear of it with the next publication."""
        self._renamed |= model != self.default
        self.default = model

    def touch(self, routes: Iterable[PlannedRoute]) -> None:
        """Note that routes may have come into force or gone out of it."""
        self.unsettled.update((planned.route.id, planned) for planned in routes)

    def pause(self, route: str, paused: bool) -> None:
        """Hide a route from gateways, so that they start nothing there, or show it again. Running requests go on."""
        if paused is not (route in self.paused):
            (self.paused.add if paused else self.paused.remove)(route)
            self._turned.add(route)

    def settle(self) -> tuple[str, ...] | None:
        """Bring routes into force and out of it.

        Return None if nothing has to be published, else the workers of new routes.

        A route that was lost and regained since the last run keeps its version.
        """
        version = self.version + 1
        changed = self._turned
        first = dict[str, None]()
        self._turned = set()
        for id, planned in self.unsettled.items():
            if planned.whole:
                if id not in self.in_force:
                    route = self.in_force[id] = replace(planned.route, version=version)
                    self._local.append(route)
                    first.update(dict.fromkeys(workers_of(route)))
                    planned.served.ever_ready = True
                    self._count(planned.served, 1)
                capacity, alone = planned.capacity(), planned.capacity_alone()
                if (self.capacity.get(id), self.capacity_alone.get(id, 0)) != (capacity, alone):
                    self.capacity[id], self.capacity_alone[id] = capacity, alone
                    changed.add(id)
            elif id in self.in_force:
                del self.in_force[id], self.capacity[id], self.capacity_alone[id]
                self._count(planned.served, -1)
                changed.add(id)
                self._local.append(planned.route)
        self.unsettled.clear()
        if not changed and not self._renamed:
            return None
        self._log.append(Change(version, frozenset(changed), frozenset(self._changed), tuple(self._local)))
        self.version = version
        self._renamed = False
        self._local = []
        self._changed.clear()
        return tuple(first)

    def resume(self, version: int) -> None:
        """Go on after a version that is the highest that any member has.

        One version is left out, so that the next publication is a whole one for all: members may have another
        content of the last one than is known here.
        """
        self.version = max(self.version, version) + 1
        self._renamed = True
        self._log.clear()

    def news(self, since: int = 0) -> RoutesChanged:
        """Return the publication for a gateway at version ``since``: the changes, or everything if that is too long ago.

        Planned routes are never included: only workers prepare for them.
        """
        if self._recent(since):
            return self._difference(since)
        everything = self.publication()
        return replace(everything, planned=[], routes=[route for route in everything.routes if route.id not in self.paused])

    def publication(self) -> RoutesChanged:
        """Return the whole publication."""
        return RoutesChanged(
            self.version,
            list(self._chains),
            list(self.in_force.values()),
            list(self.planned.values()),
            list(self._withdrawn),
            dict(self.capacity),
            list(self._draining),
            on_demand=list(self._on_demand),
            capacity_alone={id: alone for id, alone in self.capacity_alone.items() if alone},
            failed=list(self._failed),
            default=self.default,
            load_seconds=dict(self._load_seconds),
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
            {id: alone for id in in_force if (alone := self.capacity_alone[id])},
            list(self._failed),
            self.default,
            load_seconds=dict(self._load_seconds),
        )

    def parts(self, taken: Mapping[str, int]) -> dict[str, RoutesChanged]:
        """Return the publication for each of these workers at their versions.

        It holds what changed and concerns the worker, or everything that does if its version is too old.
        """
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
        """Return whether a difference to that version can be given."""
        return bool(version and self._log) and version >= self._log[0].version - 1

    def check(self, served: Iterable[Served]) -> None:
        """Raise AssertionError when an invariant is broken. Reads the whole state."""
        assert not self.unsettled
        everyone = list(served)
        known = [planned for one in everyone for planned in one.planned]
        assert list(self.planned.values()) == [planned.route for one in everyone if one.shown for planned in one.planned]
        for planned in known:
            assert planned.open == sum(not hop.held for hop in planned.hops), planned.route.id
            assert planned.whole == (planned.route.id in self.in_force), planned.route.id
            if planned.whole:
                assert self.capacity[planned.route.id] == planned.capacity(), planned.route.id
                assert self.capacity_alone[planned.route.id] == planned.capacity_alone(), planned.route.id
        assert self.capacity_alone.keys() == self.capacity.keys() == self.in_force.keys()
        assert self.in_force.keys() <= {planned.route.id for planned in known}
        for one in everyone:
            assert one.in_force == sum(planned.whole for planned in one.planned), one.application.name
            assert one.ever_ready or not one.in_force, one.application.name

    def _count(self, served: Served, change: int) -> None:
        served.in_force += change
        self.applications[served.application.name] = None


def _listed(served: Served, last: Chain | None) -> Chain:
    """Return the published chain, made once it is cut into blocks; the last one of this name while it is equal."""
    if served.chain is None or not served.chain.blocks:
        made = _chain(served, last)
        served.chain = last if last is not None and last == made else made
    return served.chain


def _chain(served: Served, last: Chain | None) -> Chain:
    """Return a new chain to publish.

    Moved block borders are not published: workers find the borders of their runs themselves.
    """
    one = served.application
    blocks = served.blocks if last is None or not last.blocks else last.blocks
    return Chain(
        one.name,
        blocks,
        one.max_length,
        one.virtual,
        model=one.model,
        checkpoint=folder_and_layers(folder_and_swaps(one.base or one.checkpoint)[0])[0],
        created=one.created,
        place=served.place,
        base=one.base_model,
        defaults=one.defaults,
        adapter=one.checkpoint if one.base else "",
        family=one.family,
        threshold=one.threshold,
        variant_of=one.variant_of,
        rank=one.rank,
        drafts_for=one.drafts_for,
    )
