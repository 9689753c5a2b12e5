"""Serving: the models that operators want served, and models that are being added.

Claims the routes of each and, unless it is loaded on demand, its components on all workers of these routes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..cluster.application_life import Conflict
from ..model.chain import Route
from ..requests.dispatch import workers_of
from .additions import Additions
from .claims import Claim, Claimant, ClaimKind, Describe, Dismiss, Know, PlanRoutes, TryAgain, Withdrawal
from .events import (
    Add,
    Added,
    AllFit,
    Application,
    Deploy,
    Event,
    Fatal,
    FinishRequests,
    HeadChanged,
    LoadFailed,
    Park,
    Remove,
    Rerouted,
    Retire,
    Serve,
    Undeploy,
    WorkerDown,
    WorkerReported,
)
from .holdings import Holdings
from .party import Conclusions, Party
from .residency import Served

SERVED = "it is served"
PLACED = "it is placed there"
ENDING = "it takes no new requests, and running ones end"


class Serving(Party):
    """The served models of one cluster (see the module).

    reports: workers report what they have, and models are placed when they have.
    """

    def __init__(self, *, reports: bool = False) -> None:
        self.additions = Additions()
        self.unplaced: list[Application] = []  # to be served once the workers have reported
        self.began = False  # models were named
        self._reports = reports

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case Serve(applications, answered):
                self.unplaced += applications
                self.began = True
                yield from self._place(view, answered=answered)
            case WorkerReported(worker) if view.workers[worker].reports == 1 and not self.unplaced:
                routes = view.placement.on_new_worker(worker)
                there = {route.application for route in routes}
                routes += [route for route in view.placement.of_stranded() if route.application not in there]
                if routes:
                    yield PlanRoutes(Claimant.SERVING, PLACED, tuple(routes))
            case Deploy(name):
                yield from self._deploy(name, view)
            case Undeploy(name):
                yield Dismiss(name)
            case Add(application, replaces):
                yield from self._add(application, replaces, view)
            case Retire(name) if not view.served[name].draining:
                yield from self._retire(view.served[name])
            case HeadChanged():
                yield from (FinishRequests(name) for name, served in view.served.items() if served.draining)
            case Remove(name) if name in view.served:
                self.additions.end(name)
                yield Dismiss(name, forget=True)
            case Park(name):
                yield Withdrawal(Claimant.SERVING, ClaimKind.WANTED, (name,))
            case Rerouted(_, ended, begun):
                yield Claim(Claimant.SERVING, ClaimKind.PLANNED, begun, PLACED)
                yield Withdrawal(Claimant.SERVING, ClaimKind.PLANNED, ended)
            case AllFit(names):
                yield Claim(Claimant.SERVING, ClaimKind.WANTED, names, SERVED)
            case WorkerDown(worker):
                self.additions.died(view.workers[worker].lost)
            case LoadFailed(worker, _, load, message) if load.holder in self.additions:
                yield from self._reject(load.holder, f"worker {worker} cannot load it: {message}")

    @property
    def placed(self) -> bool:
        """True once the models of the start are placed. Workers that come before would change what belongs together."""
        return self.began and not self.unplaced

    def in_service(self, name: str, view: Holdings) -> Served:
        """Return a served application. Raises KeyError for one that is unknown, withdrawn or being added."""
        if name not in view.served or not view.served[name].deployed or name in self.additions:
            raise KeyError(f"application {name!r} is not served; there are: {', '.join(view.blocks)}")
        return view.served[name]

    # models that are served from the start, or again -----------------------------------------------------------------

    def _place(self, view: Holdings, *, answered: bool) -> Conclusions:
        """Serve what waits, unless it waits for workers to report. Raises ValueError; then nothing has changed.

        answered: the caller has its answer already, so that an error ends the cluster.
        """
        if self._awaits_reports(view):
            return
        applications, self.unplaced = self.unplaced, []
        try:
            yield from self._serve(applications, view, answered=answered)
        except ValueError as error:
            if not answered:
                raise
            yield Fatal(str(error))

    def _awaits_reports(self, view: Holdings) -> bool:
        """Return whether placement waits for a worker.

        One that died before it reported is not waited for, unless pipelines need it; it gets what fits when it is back.
        """
        if not self._reports:
            return False
        missing = [worker for worker in view.workers.values() if worker.report is None and not worker.extra]
        pipelines = any(application.span > 1 for application in self.unplaced)
        return len(missing) == len(view.workers) or any(pipelines or not worker.restarts for worker in missing)

    def _serve(self, applications: Sequence[Application], view: Holdings, *, answered: bool) -> Conclusions:
        """Place the new applications. Raises ValueError; then nothing has changed."""
        new: dict[str, Application] = {}
        for application in applications:
            name, served = application.name, view.served.get(application.name)
            known = served.application if served is not None else new.setdefault(name, application)
            if known != application:
                raise ValueError(f"application {name!r} is known with another chain; give it another name")
        lazy = {name: one for name, one in new.items() if one.on_demand and view.on_demand}
        others = {one.name: one for one in applications if one.name not in lazy}
        eager = {name: one for name, one in new.items() if name not in lazy}
        if others:
            yield from self._take(eager, view.placement.of_all(eager))
            for name in others:
                yield from self._offer(name, view)
            if lazy:
                yield Serve(tuple(lazy.values()), answered)  # each alone must fit, beside the others' plans
            return
        yield from self._take(lazy, [r for one in lazy.values() for r in view.placement.of_one_alone(one)], lazy.keys())
        for name in lazy:
            yield TryAgain(name, anew=True)

    def _take(self, new: Mapping[str, Application], routes: Sequence[Route], lazy: Collection[str] = ()) -> Conclusions:
        """Make applications known that were not, and claim their routes."""
        for one in new.values():
            yield Know(one, self.additions.name(one.served_as), on_demand=one.name in lazy)
        yield PlanRoutes(Claimant.SERVING, PLACED, tuple(routes))

    def _offer(self, name: str, view: Holdings) -> Conclusions:
        """Claim an application's components, unless it is loaded on demand."""
        if name not in view.served or not view.served[name].parked:
            yield Claim(Claimant.SERVING, ClaimKind.WANTED, (name,), SERVED)
        yield TryAgain(name, anew=True)

    def _deploy(self, name: str, view: Holdings) -> Conclusions:
        if name not in view.served:
            raise KeyError(f"application {name!r} is not known; there are: {', '.join(view.served)}")
        yield from self._offer(name, view)

    # models that come and go -----------------------------------------------------------------------------------------

    def _add(self, application: Application, replaces: str, view: Holdings) -> Conclusions:
        """Add an application. Raises ValueError; then nothing has changed."""
        if self.unplaced:
            raise Conflict("workers are starting and have not all reported what they have; try again in a moment")
        name = application.name
        routes, parked = view.placement.of_one(application, on_demand=view.on_demand)
        if view.on_demand and not parked:
            parked = application.on_demand or all(self._in_pipeline(route, view) for route in routes)
        yield Know(application, self.additions.name(application.served_as), on_demand=parked, hidden=True)
        yield PlanRoutes(Claimant.SERVING, PLACED, tuple(routes))
        self.additions.begin(name, replaces)
        if not parked:
            yield Claim(Claimant.SERVING, ClaimKind.WANTED, (name,), SERVED)
        yield TryAgain(name, anew=True)

    def _in_pipeline(self, route: Route, view: Holdings) -> bool:
        """Return whether a route passes workers on which parameters are dropped."""
        return any(view.dropped_on(worker) for worker in workers_of(route))

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Place what waited for reports; bring additions into service as soon as they are whole, or give them up."""
        if not view.changed:
            return
        if self.unplaced:
            yield from self._place(view, answered=True)
            return
        for name in list(self.additions.replaces):
            why = self.additions.verdict(view.served[name], view.workers)
            if why:
                yield from self._reject(name, why)
                return  # what it gives up may concern the others
            if why is not None:
                replaced = self.additions.end(name)
                yield Describe(name, shown=True)
                if replaced in view.served and view.served[replaced].deployed and replaced not in self.additions:
                    yield Retire(replaced)  # in the same publication
                yield Added(name)
                return

    def _reject(self, name: str, why: str) -> Conclusions:
        yield Added(name, why)
        yield Remove(name)

    def _retire(self, served: Served) -> Conclusions:
        name = served.application.name
        yield Describe(name, draining=True)
        if served.wanted:
            yield Claim(Claimant.SERVING, ClaimKind.WANTED, (name,), ENDING)
        yield FinishRequests(name)

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when an invariant is broken, or a claim has no reason any more."""
        self.additions.check({name for name, served in view.served.items() if served.deployed and not served.shown})
        for name in view.claims.of(ClaimKind.WANTED, Claimant.SERVING):
            served = view.served[name]
            assert served.deployed, f"{name} is claimed and not served"
