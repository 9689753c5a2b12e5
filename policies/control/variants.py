"""Variants: chains of blocks that are there for other applications, which may serve in an application's place.

Claims a route on each worker where routes in force of other applications have all of a variant's components but its
stitches. So a variant adds no parameter bytes but stitches; its routes end with the ones whose components it has, or with
the application that it stands in for.
Which variants there are may change at any time: one that stays keeps its name and its routes, and no name is used again.
Where a load on demand lacks room there are none. For gateways, which begin a request on a variant while its model is being
loaded, it estimates how long that takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..cluster.demand import load_seconds
from ..model.chain import Hop, Kind, Route
from .claims import Claim, Claimant, ClaimKind, Describe, Dismiss, Know, PlanRoutes, Withdrawal
from .events import AllFit, Application, Event, LoadFailed, LoadRefused, Park, Remove, Undeploy, Vary, WorkerDown
from .holdings import Holdings
from .party import Conclusions, Party
from .residency import PlannedRoute, Served

ROUGH = 1 / 8  # part of an estimate of a load by which another one must differ to be published
WHY = "it may serve in place of {}, and all of its components but stitches are there"


class Variants(Party):
    """The variants of one cluster (see the module)."""

    def __init__(self) -> None:
        self._number = 0  # number of the last route
        self._names: dict[str, int] = {}  # model -> number of its last variant
        self._waiting: tuple[Application, ...] = ()  # variants of applications that are not served now
        self._known: dict[str, None] = {}  # the other variants
        self._anew = False  # routes on all workers may differ, not only on the ones that changed
        self._refused: set[tuple[str, str]] = set()  # (worker, variant) where it could not be loaded
        self._crowded: set[tuple[str, str]] = set()  # (worker, variant) where its stitches had no room

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case Vary(applications):
                known = {_chain(view.served[name].application): name for name in self._known}
                wanted = {_chain(one): one for one in applications}
                self._waiting, self._anew = tuple(one for chain, one in wanted.items() if chain not in known), True
                for name in [name for chain, name in known.items() if chain not in wanted]:
                    del self._known[name]
                    yield Dismiss(name, forget=True)
            case LoadRefused(worker, _, load) | LoadFailed(worker, _, load) if load.holder in self._known:
                (self._crowded if isinstance(event, LoadRefused) else self._refused).add((worker, load.holder))
                yield from self._place(view.served[load.holder], {worker: False}, view)
            case AllFit() | Park():
                self._crowded.clear()
            case WorkerDown(worker):
                self._refused = {one for one in self._refused if one[0] != worker}
                self._crowded = {one for one in self._crowded if one[0] != worker}
            case Remove(name) | Undeploy(name):
                for one in [one for one in self._known if view.served[one].application.variant_of == name]:
                    del self._known[one]
                    self._waiting += (view.served[one].application,)
                    yield Dismiss(one, forget=True)
                if isinstance(event, Remove):
                    self._waiting = tuple(one for one in self._waiting if one.variant_of != name)

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Plan routes where all components are there now, and end the others."""
        if not (self._known or self._waiting) or not (view.changed or self._anew):
            return
        if new := [one for one in self._waiting if one.variant_of in view.served and view.served[one.variant_of].deployed]:
            self._waiting = tuple(one for one in self._waiting if one not in new)
            self._anew = True
            for one in new:
                own = view.served[one.variant_of]
                name = self._new_name(own.application.served_as, view)
                self._known[name] = None
                yield Know(replace(one, name=name), own.place)
            return
        workers = [*(view.workers if self._anew else view.changed)]
        self._anew = False
        there = {worker: _components(view, worker) for worker in workers if worker in view.workers}
        closed = self._refused | self._crowded
        for name in self._known:
            wanted = _borrowed(view.served[name].application)
            fit = {worker: wanted <= found and (worker, name) not in closed for worker, found in there.items()}
            yield from self._place(view.served[name], fit, view)
        yield from self._estimate(there.keys(), view)

    def _estimate(self, workers: Collection[str], view: Holdings) -> Conclusions:
        """Estimate anew how long it takes to load the models that are on demand, where these workers matter."""
        models = dict.fromkeys(view.served[name].application.variant_of for name in self._known)
        for served in [view.served[name] for name in models if view.served[name].parked]:
            if any(one.is_on(worker) for one in served.planned for worker in workers):
                seconds = load_seconds([_lacking(one, view) for one in served.planned])
                if abs(seconds - served.load_seconds) > served.load_seconds * ROUGH:
                    yield Describe(served.application.name, load_seconds=seconds)

    def _new_name(self, model: str, view: Holdings) -> str:
        """Return a name for a variant that no other one of the model had, and that no application has."""
        number = self._names.get(model, 0) + 1
        while f"{model}~{number}" in view.served:
            number += 1
        self._names[model] = number
        return f"{model}~{number}"

    def _place(self, served: Served, fit: Mapping[str, bool], view: Holdings) -> Conclusions:
        """Plan routes on workers that fit, and end them on workers that do not."""
        application, own = served.application, view.claims.of(ClaimKind.PLANNED, Claimant.VARIANTS)
        former = {one.route.home: one.route.id for one in served.planned if one.route.id in own}
        claims = view.claims.on(ClaimKind.WANTED, application.name)
        if gone := tuple(former[worker] for worker, fits in fit.items() if worker in former and not fits):
            yield Withdrawal(Claimant.VARIANTS, ClaimKind.PLANNED, gone)
        new = [worker for worker, fits in fit.items() if fits and worker not in former]
        if Claimant.VARIANTS in claims and len(gone) == len(former) and not new:
            yield Withdrawal(Claimant.VARIANTS, ClaimKind.WANTED, (application.name,))
        if new:
            why = WHY.format(application.variant_of)
            yield PlanRoutes(Claimant.VARIANTS, why, tuple(self._route(application, worker) for worker in new))
            yield Claim(Claimant.VARIANTS, ClaimKind.WANTED, (application.name,), why)

    def _route(self, application: Application, worker: str) -> Route:
        self._number += 1
        id = f"{application.name}@{worker}#v{self._number}"
        return Route(id, 0, application.name, (Hop(worker, 0, len(application.components)),))

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
        assert self._known.keys() == {name for name, one in view.served.items() if one.application.variant_of}
        for served in (view.served[name] for name in self._known):
            assert served.application.variant_of in view.served, f"{served.application.name} outlives its chain"
            parts = _borrowed(served.application)
            for one in served.planned:
                assert Claimant.VARIANTS in view.claims.on(ClaimKind.PLANNED, one.route.id), f"{one.route.id} is another's"
                assert parts <= _components(view, one.route.home), f"route {one.route.id} adds parameters"


def _chain(one: Application) -> tuple[str, int, tuple[bytes, ...]]:
    """Return what makes a variant the one that it is: the application in whose place it serves, its rank and components."""
    return one.variant_of, one.rank, tuple(component.id for component in one.components)


def _borrowed(variant: Application) -> set[bytes]:
    """Return the components of a variant that belong to other applications: all but its stitches."""
    return {one.id for one in variant.components if one.kind is not Kind.STITCH}


def _lacking(planned: PlannedRoute, view: Holdings) -> list[tuple[int, float]]:
    """Return, for each worker of a route, the bytes that are missing there, and the bytes that it loads in a second."""
    found = []
    for hop in planned.route.hops:
        residency, parts = view.residency[hop.worker], planned.served.application.components[hop.first : hop.last]
        here = {id for name in residency.resident for id in residency.parts(name)}
        sizes = {one.shared: one.nbytes for one in parts} | {one.delta: one.delta_nbytes for one in parts if one.delta}
        missing = sum(nbytes for id, nbytes in sizes.items() if id not in here)
        found.append((missing, view.workers[hop.worker].load_speed))
    return found


def _components(view: Holdings, worker: str) -> set[bytes]:
    """Return the components of other applications' routes in force on a worker; none where no variant may serve."""
    found: set[bytes] = set()
    if view.claims.on(ClaimKind.UNVARIED, worker):
        return found
    for name, hops in view.residency[worker].hops.items():
        if not (application := view.served[name].application).variant_of:
            for hop in (hop for hop in hops if hop.route.whole):
                found.update(one.id for one in application.components[hop.first : hop.last])
    return found
