"""The controller's state machine: the blocks of each worker, and the routes in force.

Owns placement, loading and the versions of routes; only the controller publishes them. A route is in force while all of
its workers are alive and hold their hops' components; it ends with the first of them. ``handle(event, now)`` returns the
effects to perform. It costs work for what changed: a heartbeat touches its worker, a death the routes through it. Never
sends, waits or reads a clock, and knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cluster.application_life import Conflict, model_of
from ..cluster.demand import back_in_vain
from ..cluster.worker_size import WorkerReport, WorkerSizes
from ..model.chain import Route
from ..requests.routes_changed import RoutesChanged
from . import events
from .additions import Additions
from .drop_events import MemoryLacks
from .holdings import Holdings
from .on_demand import OnDemand
from .parameter_drops import ParameterDrops
from .residency import Served
from .scaling import Scaling, ScalingPlan
from .worker_record import WorkerRecord


class ControllerState:
    """The state of one controller (see the module).

    memory, block_idle: see ``placement.py``. on_demand, scaling: see the modules of these names. sizes: settles what each
    worker gets of its machine; applications are placed when the workers have reported. None: they report nothing.
    """

    def __init__(
        self,
        workers: Sequence[str],
        stall_timeout: float,
        *,
        memory: Mapping[str, int] | None = None,
        block_idle: float = 0.0,
        on_demand: bool = True,
        scaling: ScalingPlan | None = None,
        sizes: WorkerSizes | None = None,
    ) -> None:
        self.stall_timeout = stall_timeout
        self.default_is_set = False  # a setting names the default model (``table.default``)
        self.sizes = sizes
        rules = sizes.rules if sizes is not None else None
        self.holdings = holdings = Holdings(workers, memory or {}, block_idle, on_demand=on_demand, sizes=rules)
        self.served, self.table = holdings.served, holdings.table
        self.workers, self.residency = holdings.workers, holdings.residency
        self.placement, self.touched = holdings.placement, holdings.touched
        self.additions = Additions()
        self.overload = ParameterDrops(holdings)
        self.demand = OnDemand(holdings, self.overload)
        self.scaling = Scaling(holdings, scaling or ScalingPlan())
        self._ranked = 0  # number of applications ever known
        self.unplaced: list[events.Application] = []  # to serve once the workers have reported

    def handle(self, event: events.Event, now: float) -> list[events.Effect]:
        """Apply one event; the effects must be performed in order."""
        self.touched.clear()
        self.table.applications.clear()
        if isinstance(event, events.OfLives) and event.worker not in self.workers:
            return []  # it was drained and forgotten
        match event:
            case events.WorkerHeartbeat():
                self._beat(event)
            case events.Loaded() | events.LoadFailed() | events.KvCapacity():
                if self.holdings.current(event.worker, event.incarnation):
                    self._answered(event)
            case events.WorkerStarting(name, incarnation, pid):
                self.workers[name].launched(incarnation, pid, now)
                self.touched[name] = None
            case events.WorkerReported(name, incarnation, report):
                self._reported(self.workers[name], incarnation, report)
            case events.WorkerUp(name, incarnation):
                self._rise(self.workers[name], incarnation)
            case events.WorkerDown(name, incarnation, cause):
                if self.workers[name].ended_by(incarnation):
                    self._fall(self.workers[name], incarnation, cause, now)
            case events.WorkerCannotStart(name, incarnation, why):
                self._unfit(self.workers[name], incarnation, why)
            case events.Serve(applications):
                self.unplaced += applications
                self._place()
            case events.Deploy(application):
                self._deploy(application)
            case events.Undeploy(application):
                self._undeploy(application)
            case events.Add(application, replaces):
                self._add(application, replaces)
            case events.Retire(application):
                self._retire(application)
            case events.Remove(application):
                self._remove(application)
            case events.LoadRefused():
                if self.holdings.current(event.worker, event.incarnation):
                    self._refused(event, now)
            case events.ScalingEvent():
                self.scaling.handle(event, now)
            case events.DemandEvent():
                self.demand.handle(event, now)
                for failed in self.demand.take_given_up():
                    self._answered(failed)
            case events.OverloadEvent():
                self.overload.handle(event, now)
                if isinstance(event, MemoryLacks):
                    self.scaling.lacking(event.why)
        if self.unplaced:
            self._place_if_possible()
        for name in list(self.additions.replaces) if self.touched else ():
            self._settle(name)
        self.demand.tick()
        self.overload.tick(now)
        for name in self.touched:
            self._advance(self.workers[name])
        self.scaling.tick(now)
        self.holdings.publish()
        return self.holdings.take_effects()

    def ready(self, name: str) -> bool:
        """Return whether at least one route of the application is in force."""
        return self.served[name].in_force > 0

    @property
    def routes(self) -> dict[str, Route]:
        """The routes in force, by id."""
        return self.table.in_force

    @property
    def version(self) -> int:
        """The version of the last publication."""
        return self.table.version

    @property
    def whole(self) -> bool:
        """True if every planned route is in force, and there is one."""
        return 0 < self.holdings.planned == len(self.routes)

    @property
    def serves(self) -> bool:
        """True if every deployed application has a route in force, and there is one."""
        return bool(self.holdings.blocks) and all(
            s.parked or s.in_force for s in self.served.values() if s.deployed and s.shown
        )

    @property
    def all_up(self) -> bool:
        return self.holdings.alive == len(self.workers)

    def publication(self) -> RoutesChanged:
        """Return the whole publication."""
        return self.table.publication()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken. Reads the whole state."""
        self.holdings.check()
        self.additions.check({name for name, served in self.served.items() if served.deployed and not served.shown})
        self.demand.check()
        self.overload.check()

    # life of workers

    def _reported(self, worker: WorkerRecord, incarnation: int, report: WorkerReport) -> None:
        """Note what a worker has. One that reports for the first time after placement gets what fits there."""
        if incarnation < worker.last:
            return
        new, worker.report = worker.report is None, report
        self.touched[worker.name] = None
        if new and not self.unplaced and (came := self.placement.replicate(worker.name)):
            for name in came:
                self.residency[worker.name].want(name)
            self.holdings.catalog()

    def _rise(self, worker: WorkerRecord, incarnation: int) -> None:
        self.holdings.alive += not worker.alive
        worker.rise(incarnation)
        self.residency[worker.name].clear()
        self.holdings.clear_failures(worker.name)
        self.touched[worker.name] = None

    def _fall(self, worker: WorkerRecord, incarnation: int, cause: str, now: float) -> None:
        self.holdings.alive -= worker.alive
        worker.fall(incarnation, cause, now)
        self.scaling.down(worker.name, now)
        loading = self.residency[worker.name].loading
        if loading is not None:
            self.additions.died(loading.holder)
        self.residency[worker.name].clear()
        self.holdings.clear_failures(worker.name)
        self.holdings.end_extras(lambda extra: extra.is_on(worker.name))
        self.overload.died(worker.name, now)
        self.touched[worker.name] = None
        some_last = self.holdings.ever_ready and any(other.settled(now) for other in self.workers.values())
        if why := worker.hopeless(proven=self.holdings.ever_ready, some_last=some_last):
            self.holdings.perform(events.Fatal(f"{why}: {cause}"))

    def _unfit(self, worker: WorkerRecord, incarnation: int, why: str) -> None:
        if worker.state != "starting" or incarnation != worker.last:
            return
        if self.holdings.ever_ready:
            self.holdings.perform(events.KillWorker(worker.name, f"it cannot start: {why}"))  # it may succeed next time
        else:
            self.holdings.perform(events.Fatal(f"worker {worker.name} cannot start: {why}"))

    def _beat(self, beat: events.WorkerHeartbeat) -> None:
        if not self.holdings.current(beat.worker, beat.incarnation):
            return
        worker = self.workers[beat.worker]
        worker.waiting = beat.waiting
        worker.running = beat.running
        worker.routes = beat.routes
        if beat.sweep_age > self.stall_timeout and not worker.condemned:
            worker.condemned = True
            self.residency[worker.name].serve(False)
            self.touched[worker.name] = None
            self.holdings.perform(events.KillWorker(worker.name, "stalled"))

    # what workers answer

    def _answered(self, event: events.Loaded | events.LoadFailed | events.KvCapacity) -> None:
        name, residency = event.worker, self.residency[event.worker]
        self.touched[name] = None
        match event:
            case events.KvCapacity(_, _, nbytes, left_alone, owned):
                residency.set_room(nbytes, left_alone if self.holdings.on_demand else None, owned)
                residency.serve(self.workers[name].well)
                if why := residency.cramped(name, self.holdings.never_ready):
                    self.holdings.perform(events.Fatal(why))
            case events.Loaded(_, incarnation, load):
                residency.loading, residency.room_stale = None, True
                self.holdings.final.discard((name, load.holder))  # it can be loaded after all
                if load.holder in self.served and self.served[load.holder].here and residency.hops.get(load.holder):
                    residency.loaded(load)
                else:
                    ids = (*load.ids, *filter(None, load.deltas))
                    self.holdings.perform(events.Unload(name, incarnation, load.holder, ids))
            case events.LoadFailed():
                self._failed(event)

    def _failed(self, event: events.LoadFailed) -> None:
        """Give up an addition that a worker cannot load; let another application load elsewhere, if it can."""
        worker, name = event.worker, event.load.holder
        residency = self.residency[worker]
        if residency.loading is not None and residency.loading.holder == name:
            residency.loading = None
        if name in self.additions:
            self.demand.forget(name)
            self._reject(name, f"worker {worker} cannot load it: {event.message}")
        elif name in self.served:
            self.holdings.failed(event)
            self.overload.failed(worker, name)
            self.holdings.end_extras(lambda extra: extra.route.application == name and extra.is_on(worker))
            if not self.demand.goes_on(name, worker):
                self.demand.forget(name)
                if self.holdings.note_failure(name):
                    self.demand.park(name)
        if name in self.holdings.never_ready:
            self.holdings.perform(events.Fatal(f"worker {worker} cannot load {model_of(name)}: {event.message}"))

    def _refused(self, event: events.LoadRefused, now: float) -> None:
        """Make room for a load, or let it wait or fail.

        Parameters that return after a burst, and late ones, wait for room.
        """
        name = event.load.holder
        late = name in self.residency[event.worker].late and name != self.demand.coming
        if self.overload.refused(event, late=late):
            if not late and back_in_vain(self.overload.coming_back(name, now)):
                self.demand.come_back(event, now)
        elif not self.demand.refused(event):
            why = event.why
            self._answered(events.LoadFailed(event.worker, event.incarnation, event.load, why.message, why.never))

    # applications

    def _deployed(self, name: str) -> bool:
        return name in self.served and self.served[name].deployed

    def _in_service(self, name: str) -> Served:
        if not self._deployed(name) or name in self.additions:
            raise KeyError(f"application {name!r} is not served; there are: {', '.join(self.holdings.blocks)}")
        return self.served[name]

    def _place(self) -> None:
        """Serve what waits, unless it waits for workers to report. Raises ValueError; then nothing has changed."""
        if self._awaits_reports():
            return
        applications, self.unplaced = self.unplaced, []
        self._serve(applications)

    def _place_if_possible(self) -> None:
        try:
            self._place()
        except ValueError as error:  # the caller has its answer already
            self.holdings.perform(events.Fatal(str(error)))

    def _awaits_reports(self) -> bool:
        """Return whether placement waits for a worker.

        One that died before it reported is not waited for, unless pipelines need it; it gets what fits when it is back.
        """
        if self.sizes is None:
            return False
        missing = [worker for worker in self.workers.values() if worker.report is None and not worker.extra]
        pipelines = any(application.span > 1 for application in self.unplaced)
        return len(missing) == len(self.workers) or any(pipelines or not worker.restarts for worker in missing)

    def _serve(self, applications: Sequence[events.Application]) -> None:
        """Place the new applications. Raises ValueError; then nothing has changed."""
        new: dict[str, events.Application] = {}
        for application in applications:
            name, served = application.name, self.served.get(application.name)
            known = served.application if served is not None else new.setdefault(name, application)
            if known != application:
                raise ValueError(f"application {name!r} is known with another chain; give it another name")
        lazy = {name: one for name, one in new.items() if one.on_demand and self.holdings.on_demand}
        eager = {name: one for name, one in new.items() if name not in lazy}
        self._take(eager, self.placement.of_all(eager))
        if lazy:  # each alone must fit: nothing of them is loaded yet
            self._take(lazy, [route for one in lazy.values() for route in self.placement.of_one_alone(one)])
            for name in lazy:
                self.served[name].parked = self.served[name].on_demand = True
        for name in dict.fromkeys(a.name for a in applications):
            self.holdings.offer(name)
        self.holdings.catalog()

    def _take(self, new: Mapping[str, events.Application], routes: Sequence[Route]) -> None:
        """Record applications that were unknown, and plan their routes."""
        for application in new.values():
            place = self.additions.name(application.served_as)
            self.served[application.name] = Served(application, self._ranked, place)
            self._ranked += 1
        self.placement.plan(routes)

    def _deploy(self, name: str) -> None:
        if name not in self.served:
            raise KeyError(f"application {name!r} is not known; there are: {', '.join(self.served)}")
        self.holdings.offer(name)
        self.holdings.catalog()

    def _undeploy(self, name: str) -> None:
        served = self._in_service(name)
        self.holdings.end_extras(lambda extra: extra.served is served)
        self.overload.forget(name)
        self._withdraw(served, forget=False)

    def _withdraw(self, served: Served, *, forget: bool) -> None:
        """Take an application out of service and its components out of the workers. ``forget``: for good."""
        served.deployed = served.parked = False
        self.demand.forget(served.application.name)
        self.holdings.may_load(served.application.name)
        self.holdings.vacate(served, forget=forget)

    # applications that come and go

    def _add(self, application: events.Application, replaces: str) -> None:
        """Add an application. Raises ValueError; then nothing has changed."""
        if self.unplaced:
            raise Conflict("workers are starting and have not all reported what they have; try again in a moment")
        routes, parked = self.placement.of_one(application, on_demand=self.holdings.on_demand)
        parked = parked or (
            self.holdings.on_demand and (application.on_demand or self.demand.nowhere_but_in_pipelines(routes))
        )
        self._take({application.name: application}, routes)
        served = self.served[application.name]
        served.parked = served.on_demand = parked
        served.shown = False
        self.additions.begin(application.name, replaces)
        self.holdings.offer(application.name)
        self.holdings.catalog()

    def _settle(self, name: str) -> None:
        """Bring an addition into service as soon as it is whole, or give it up."""
        served = self.served[name]
        why = self.additions.verdict(served, self.workers)
        if why:
            self._reject(name, why)
        elif why is not None:
            replaces, served.shown = self.additions.end(name), True
            self.table.touch(served.planned)
            if self._deployed(replaces):
                self._retire(replaces)  # in the same publication
            self.holdings.catalog()
            self.holdings.after.append(events.Added(name))

    def _reject(self, name: str, why: str) -> None:
        self.holdings.after.append(events.Added(name, why))
        self._remove(name)

    def _retire(self, name: str) -> None:
        served = self._in_service(name)
        if not served.draining:
            served.draining = True
            self.holdings.catalog()
            self.holdings.after.append(events.FinishRequests(name))

    def _remove(self, name: str) -> None:
        if name not in self.served:
            return
        self.holdings.end_extras(lambda extra: extra.route.application == name)
        self.overload.forget(name)
        served = self.served.pop(name)
        self.additions.end(name)
        self.placement.cut()
        self.table.end(served.planned)  # with their pauses
        self._withdraw(served, forget=True)

    # loading and publishing

    def _advance(self, worker: WorkerRecord) -> None:
        """Advance a worker as far as possible without further news."""
        residency = self.residency[worker.name]
        if not self.holdings.blocks or not worker.well or residency.loading is not None:
            return
        if not residency.lacks(self.demand.coming) and residency.ask_room():
            self.holdings.perform(events.AskCapacity(worker.name, worker.incarnation))
        if residency.asking:
            return  # complete routes come into force before the next application loads
        residency.loading = self.overload.sourced(worker.name, residency.next_load())
        if residency.loading is None:
            worker.state = "ready"
        else:
            worker.state = "loading"
            self.holdings.perform(events.Load(worker.name, worker.incarnation, residency.loading))
