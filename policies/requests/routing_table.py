"""The routing table of a gateway: models, their whole routes, the capacity of each route, and the work on each worker.

It combines the controller's publications with the worker deaths since then. A *model* is what clients ask for; the
*application* that takes its new requests may change. ``dispatch.py`` chooses between routes; ``poison.py`` isolates
suspects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ..model.chain import Chain, Kind, Route, bases
from .load_failure import LoadFailure
from .paces import WorkerLink, WorkerPaces
from .routes_changed import RoutesChanged


class RoutingTable:
    """The routing table of one gateway (see the module).

    ``applications``: the configured ones, of which nothing is known before the first update.
    """

    def __init__(self, applications: Iterable[str]) -> None:
        self.seat = ""  # the gateway's name if there are others, for ties between workers with equal work
        self.version = 0  # version of the last update taken
        self.alive: set[str] = set()  # workers that are alive
        self._cuts: frozenset[frozenset[str]] = frozenset()  # pairs of workers that do not reach each other
        self.chains: dict[str, Chain] = {}  # chains of applications that are served, or finish their requests
        self._published: dict[
            str, dict[str, Route]
        ] = {}  # application -> routes by id: in force at the last update, not lost
        self._lost: set[str] = set()  # ids of routes lost with their workers since the last update about them
        self.routes: dict[str, list[Route]] = {name: [] for name in applications}  # whole routes: see ``_whole``
        self.models = {name: name for name in self.routes}  # model -> the application that takes its new requests
        self.drafting: dict[str, str] = {}  # id of a chain that only drafts -> its application now
        self.capacity: dict[str, int] = {}  # route id -> tokens that fit, as last published
        self.capacity_alone: dict[str, int] = {}  # the same after unloading others; absent: none is
        self.room: dict[str, int] = {}  # application -> most tokens that any of its routes could hold then
        self.variants: dict[str, list[str]] = {}  # application -> the variants that may serve in its place
        self.ranks: dict[str, int] = {}  # variant -> its place in the order of accuracy, if it is not 0
        self.sizes: dict[str, tuple[int, int]] = {}  # application -> bytes of its parameters, width of its hidden states
        self.paces = WorkerPaces()
        self.numerics: dict[str, str] = {}  # of each worker that has said
        self.link: WorkerLink | None = None  # between two workers, by the device profile
        self.bases: dict[str, str] = {}  # model -> the served one that it shares most parameters with
        self.vanished: dict[str, float] = {}  # application -> when it lost its last whole route
        self.on_demand: set[str] = set()  # applications loaded on demand
        self.load_seconds: Mapping[str, float] = {}  # of applications on demand with variants; absent: unknown
        self.served: set[str] = set()  # applications that have had a route
        self.failed: dict[
            str, tuple[LoadFailure, float]
        ] = {}  # application -> why it can load nowhere, and when that was heard
        self.work: dict[str, int] = {}  # worker -> tokens outstanding there
        self.on: dict[str, set[str]] = {}  # worker -> requests running on it
        self.default = next(iter(self.routes), "")  # id for requests without a model, served or not
        self.opened: set[str] = set()  # applications with a new route not considered yet

    @property
    def settled(self) -> int:
        """The version that the whole table has; 0: the whole publication is needed again."""
        return 0 if self._lost else self.version

    def model_of(self, application: str) -> str:
        """Return an application's model name."""
        chain = self.chains.get(application)
        return application if chain is None else chain.served_as

    def donors(self, variant: str) -> list[str]:
        """Return the served models whose components stand in for those of a variant's model, the one with most first."""
        chain = self.chains.get(variant)
        if chain is None or (own := self.chains.get(chain.variant_of)) is None:
            return []
        strange = _parts(chain) - _parts(own)
        shared = {model: strange & _parts(self.chains[application]) for model, application in self.models.items()}
        found = []
        for model in sorted(shared, key=lambda one: -len(shared[one])):
            if strange & shared[model]:
                strange -= shared[model]
                found.append(model)
        return found

    def update(self, news: RoutesChanged, now: float) -> None:
        """Apply a publication of the controller.

        An older one is ignored, and so is a difference to a version that is not known here.
        """
        version, since = news.version, news.since
        if version < self.version or (version == self.version and (since or not self._lost)) or since > self.version:
            return
        self.version = version
        self.on_demand = set(news.on_demand)
        self.load_seconds = news.load_seconds
        self.default = news.default or self.default
        self._note(news.failed, now)
        if not since:
            self.chains = {}
            self._published = {}
            self.capacity = {}
            self.capacity_alone = {}
            self._lost.clear()
        changed = self._apply(news)
        self._lost.difference_update(news.ended, (route.id for route in news.routes))
        self.capacity.update(news.capacity)
        self.capacity_alone.update(news.capacity_alone)
        self._list_models(news.draining)
        self._take([application for application in changed if application in self.chains], now)

    def _apply(self, news: RoutesChanged) -> dict[str, None]:
        """Add and remove applications and routes; return the applications that may have other routes now."""
        for chain in news.chains:
            self.chains[chain.application] = chain
            self.sizes[chain.application] = _size(chain)
        for application in {*news.removed, *news.withdrawn}:
            self.chains.pop(application, None)
            self._published.pop(application, None)
        changed = dict.fromkeys((chain.application for chain in news.chains) if news.since else self.chains)
        for id in news.ended:
            self.capacity.pop(id, None)
            self.capacity_alone.pop(id, None)
            for application, known in self._published.items():
                if known.pop(id, None) is not None:
                    changed[application] = None
        for route in news.routes:
            if route.application in self.chains:
                self._published.setdefault(route.application, {})[route.id] = route
                changed[route.application] = None
        return changed

    def _note(self, failed: Iterable[LoadFailure], now: float) -> None:
        known, self.failed = self.failed, {}
        for failure in failed:
            former = known.get(failure.application)
            same = former is not None and former[0].number == failure.number
            self.failed[failure.application] = former if former is not None and same else (failure, now)

    def _list_models(self, draining: Collection[str]) -> None:
        """Update the served models; nothing is kept of forgotten ones."""
        known = [chain for chain in self.chains.values() if chain.application not in draining]
        named = (chain for chain in known if not (chain.variant_of or chain.drafts_for))
        current = sorted(named, key=lambda chain: chain.place)
        self.variants = {}
        for chain in (chain for chain in known if chain.variant_of in self.chains):
            self.variants.setdefault(chain.variant_of, []).append(chain.application)
        self.ranks = {chain.application: chain.rank for chain in known if chain.rank}
        self.models = {chain.served_as: chain.application for chain in current}
        self.drafting = {chain.served_as: chain.application for chain in known if chain.drafts_for}
        self.bases = {self.model_of(one): self.model_of(base) for one, base in bases(current).items()}
        self.routes = {application: self.routes.get(application, []) for application in self.chains}
        for noted in (self.room, self.vanished, self.sizes):
            for application in noted.keys() - self.chains.keys():
                del noted[application]
        self.served &= self.chains.keys()

    def _take(self, applications: Iterable[str], now: float) -> None:
        """Set the whole routes of these applications."""
        for application in applications:
            found = [route for route in self._published.get(application, {}).values() if self._whole(route)]
            self._set_routes(application, found, now)
            if found and all(route.id in self.capacity for route in found):
                self.room[application] = max(self.capacity_alone.get(route.id, self.capacity[route.id]) for route in found)

    def join(self, worker: str, now: float) -> None:
        """Add a live worker. Its routes come with the next update, or came before."""
        self.alive.add(worker)
        self.paces.compare(self.alive)
        self._take([name for name, routes in self._published.items() if any(map(_through(worker), routes.values()))], now)

    def lose(self, worker: str, now: float) -> set[str]:
        """Remove a dead worker, and its routes until an update says otherwise; return the requests that ran on it."""
        self.alive.discard(worker)
        self.numerics.pop(worker, None)
        self.paces.lose(worker, self.alive)
        passes = _through(worker)
        for application, routes in self._published.items():
            if gone := [id for id, route in routes.items() if passes(route)]:
                self._lost.update(gone)
                for id in gone:
                    del routes[id]
                self._take([application], now)
        return set(self.on.get(worker, ()))

    def cut(self, pairs: Iterable[tuple[str, str]], now: float) -> None:
        """Take the pairs of workers that do not reach each other, so that no route passes both of one."""
        self._cuts = frozenset(map(frozenset, pairs))
        self._take(list(self._published), now)

    def absent(self, application: str) -> bool:
        """Return whether it has no route because it is on demand and was not asked for, as far as is known."""
        return application in self.on_demand and not self.routes.get(application)

    def given_up(self, application: str) -> bool:
        """Return whether it has no route, and no worker will try to load it."""
        failure, _ = self.failed.get(application, (None, 0.0))
        return failure is not None and failure.final and not self.routes.get(application)

    def serves(self, worker: str) -> bool:
        """Return whether requests may be sent through the worker: it is on a whole published route."""
        passes = _through(worker)
        return any(passes(route) for routes in self.routes.values() for route in routes)

    def numerics_of(self, route: Route) -> str:
        """Return the numerics of a route's workers; empty if one has not said."""
        found = {self.numerics.get(hop.worker, "") for hop in route.hops}
        return "" if "" in found else "+".join(sorted(found))

    def take_numerics(self, worker: str, numerics: str) -> bool:
        """Take a worker's numerics; return whether they are news. Its routes count as newly opened then.

        A request that has tokens takes a route of other numerics, or of unknown ones, only if there is no other.
        """
        if self.numerics.get(worker) == numerics:
            return False
        self.numerics[worker] = numerics
        passes = _through(worker)
        self.opened.update(name for name, routes in self.routes.items() if any(map(passes, routes)))
        return True

    def rooms(self, application: str) -> tuple[int, ...]:
        """Return the tokens that each whole route could hold at the last report."""
        return tuple(self.capacity[r.id] for r in self.routes[application] if r.id in self.capacity)

    def place(self, request: str, workers: Iterable[str], tokens: int) -> None:
        """Record a request that runs on these workers, with ``tokens`` tokens to compute."""
        for worker in workers:
            self.work[worker] = self.work.get(worker, 0) + tokens
            self.on.setdefault(worker, set()).add(request)

    def charge(self, workers: Iterable[str], change: int) -> None:
        """Change the tokens that a running request has still to compute."""
        for worker in workers:
            self.work[worker] += change

    def remove(self, request: str, workers: Iterable[str], tokens: int) -> None:
        """Remove a request from its workers; ``tokens`` were counted last."""
        for worker in workers:
            self.work[worker] -= tokens
            self.on[worker].discard(request)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        for routes in self.routes.values():
            assert all(self._whole(route) for route in routes)
        assert not self.version or self.routes.keys() == self.chains.keys() >= self._published.keys()
        assert self.routes.keys() >= set(self.models.values())

    def _whole(self, route: Route) -> bool:
        """Return whether every worker of a route is alive, and reaches the others."""
        workers = {hop.worker for hop in route.hops}
        return workers <= self.alive and not any(pair <= workers for pair in self._cuts)

    def _set_routes(self, application: str, routes: list[Route], now: float) -> None:
        if {route.id for route in routes} - {route.id for route in self.routes.get(application, [])}:
            self.opened.add(application)
        if routes:
            self.served.add(application)
        elif self.routes.get(application):
            self.vanished[application] = now
            if application in self.on_demand:  # its room next time is not known
                self.room.pop(application, None)
        self.routes[application] = routes


def _size(chain: Chain) -> tuple[int, int]:
    """Return the bytes of a chain's parameters that every token passes, and the width of its hidden states."""
    parts = [part for part in chain.components if part.kind is not Kind.EMBEDDING]
    return sum(part.nbytes for part in parts), parts[0].width_in if parts else 0


def _through(worker: str) -> Callable[[Route], bool]:
    return lambda route: any(hop.worker == worker for hop in route.hops)


def _parts(chain: Chain) -> set[tuple[bytes, bytes]]:
    """Return the components of a chain, each with its delta, without stitches."""
    return {(one.id, one.delta) for one in chain.components if one.kind is not Kind.STITCH}
