"""The controller's state machine: the blocks of each worker, and the routes in force.

Owns placement, loading and the versions of routes; only the controller publishes them. A route is in force while all of
its workers are alive and hold their hops' components; it ends with the first of them. ``handle(event, now)`` returns the
effects to perform. It costs work for what changed: a heartbeat touches its worker, a death the routes through it. Never
sends, waits or reads a clock, and knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..model.chain import Block, Route
from ..requests.dispatch import workers_of
from ..requests.routes_changed import RoutesChanged
from . import events as m
from .additions import Additions
from .load_failures import LoadFailures
from .on_demand import OnDemand
from .parameter_drops import ParameterDrops
from .placement import Placement
from .residency import PlannedRoute, Residency, Served
from .routes import Routes
from .scaling import Scaling, ScalingPlan
from .worker_record import WorkerRecord


class ControllerState:
    """The state of one controller (see the module).

    memory, block_idle: see ``placement.py``. on_demand, scaling: see the modules of these names.
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
    ) -> None:
        self.stall_timeout, self.on_demand = stall_timeout, on_demand
        self.default_is_set = False  # a setting names the default model (``table.default``)
        self.served: dict[str, Served] = {}  # every known application
        self.additions = Additions()
        self.blocks: dict[str, tuple[Block, ...]] = {}  # of deployed applications
        self.table = Routes()
        self.workers = {name: WorkerRecord(name) for name in workers}
        self.residency = {name: Residency(self.served, self.table.touched) for name in workers}
        self.placement = Placement(self.served, self.residency, memory or {}, block_idle)
        self.touched: dict[str, None] = {}  # workers concerned by the last event, except for a heartbeat's queue figures
        self.demand = OnDemand(self)
        self.failures = LoadFailures(self)
        self.scaling = Scaling(self, scaling or ScalingPlan())
        self.overload = ParameterDrops(self)
        self.alive = 0  # number of live workers
        self.planned = 0  # number of published routes of deployed applications
        self._ranked = 0  # number of applications ever known
        self.ever_ready = False  # some application has had a route in force
        self.never_ready: dict[str, None] = {}  # deployed applications that never had one
        self._effects: list[m.Effect] = []
        self.after: list[m.Effect] = []  # effects after the publication that ends the event

    def handle(self, event: m.Event, now: float) -> list[m.Effect]:
        """Apply one event; the effects must be performed in order."""
        self.touched.clear()
        self.table.applications.clear()
        if (
            isinstance(event, m.WorkerStarting | m.WorkerUp | m.WorkerDown | m.WorkerCannotStart)
            and event.worker not in self.workers
        ):
            return []  # it was drained and forgotten
        match event:
            case m.WorkerHeartbeat():
                self._beat(event)
            case m.Loaded() | m.LoadFailed() | m.KvCapacity():
                if self.current(event.worker, event.incarnation):
                    self.news(event)
            case m.WorkerStarting(name, incarnation, pid):
                self.workers[name].launched(incarnation, pid, now)
                self.touched[name] = None
            case m.WorkerUp(name, incarnation):
                self._rise(self.workers[name], incarnation)
            case m.WorkerDown(name, incarnation, cause):
                if self.workers[name].ended_by(incarnation):
                    self._fall(self.workers[name], incarnation, cause, now)
            case m.WorkerCannotStart(name, incarnation, why):
                self._unfit(self.workers[name], incarnation, why)
            case m.Serve(applications):
                self._serve(applications)
            case m.Deploy(application):
                self._deploy(application)
            case m.Undeploy(application):
                self._undeploy(application)
            case m.Add(application, replaces):
                self._add(application, replaces)
            case m.Retire(application):
                self._retire(application)
            case m.Remove(application):
                self._remove(application)
            case m.ScalingEvent():
                self.scaling.handle(event, now)
            case m.DemandEvent():
                self.demand.handle(event, now)
            case m.OverloadEvent():
                self.overload.handle(event, now)
        for name in list(self.additions.replaces) if self.touched else ():
            self._settle(name)
        self.demand.tick()
        self.overload.tick(now)
        for name in self.touched:
            self._advance(self.workers[name])
        self.scaling.tick(now)
        self.publish()
        effects = [*self._effects, *self.after]
        self._effects = []
        self.after = []
        return effects

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
        return 0 < self.planned == len(self.routes)

    @property
    def serves(self) -> bool:
        """True if every deployed application has a route in force, and there is one."""
        return bool(self.blocks) and all(s.parked or s.in_force for s in self.served.values() if s.deployed and s.shown)

    @property
    def all_up(self) -> bool:
        return self.alive == len(self.workers)

    def publication(self) -> RoutesChanged:
        """Return the whole publication."""
        return self.table.publication()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken. Reads the whole state."""
        for name, worker in self.workers.items():
            assert bool(worker.incarnation) == worker.alive, name
            assert worker.incarnation in (0, worker.last), name
            self.residency[name].check(worker.alive and not worker.condemned)
        assert self.alive == sum(worker.alive for worker in self.workers.values())
        assert list(self.blocks) == [name for name, served in self.served.items() if served.deployed]
        shown = [name for name in self.blocks if self.served[name].shown]
        self.additions.check(set(self.blocks) - set(shown))
        resident = [name for name in shown if not self.served[name].parked]
        assert self.planned == sum(len(self.served[name].planned) for name in resident)
        hopeful = {name for name in resident if not (self.served[name].ever_ready or self.served[name].on_demand)}
        assert set(self.never_ready) == hopeful
        assert self.ever_ready or not any(served.ever_ready for served in self.served.values())
        self.table.check(self.served.values())
        self.demand.check()
        self.overload.check()

    # life of workers

    def current(self, name: str, incarnation: int) -> bool:
        worker = self.workers.get(name)
        return worker is not None and worker.alive and worker.incarnation == incarnation

    def _well(self, worker: WorkerRecord) -> bool:
        return worker.alive and not worker.condemned

    def _rise(self, worker: WorkerRecord, incarnation: int) -> None:
        self.alive += not worker.alive
        worker.rise(incarnation)
        self.residency[worker.name].clear()
        self.failures.cleared(worker.name)
        self.touched[worker.name] = None

    def _fall(self, worker: WorkerRecord, incarnation: int, cause: str, now: float) -> None:
        self.alive -= worker.alive
        worker.fall(incarnation, cause, now)
        self.scaling.down(worker.name, now)
        loading = self.residency[worker.name].loading
        if loading is not None:
            self.additions.died(loading.holder)
        self.residency[worker.name].clear()
        self.failures.cleared(worker.name)
        self.end_extras(lambda extra: extra.is_on(worker.name))
        self.overload.died(worker.name, now)
        self.touched[worker.name] = None
        some_last = self.ever_ready and any(other.settled(now) for other in self.workers.values())
        if why := worker.hopeless(proven=self.ever_ready, some_last=some_last):
            self._effects.append(m.Fatal(f"{why}: {cause}"))

    def _unfit(self, worker: WorkerRecord, incarnation: int, why: str) -> None:
        if worker.state != "starting" or incarnation != worker.last:
            return
        if self.ever_ready:
            self._effects.append(m.KillWorker(worker.name, f"it cannot start: {why}"))  # it may succeed next time
        else:
            self._effects.append(m.Fatal(f"worker {worker.name} cannot start: {why}"))

    def _beat(self, beat: m.WorkerHeartbeat) -> None:
        if not self.current(beat.worker, beat.incarnation):
            return
        worker = self.workers[beat.worker]
        worker.waiting = beat.waiting
        worker.running = beat.running
        worker.routes = beat.routes
        if beat.sweep_age > self.stall_timeout and not worker.condemned:
            worker.condemned = True
            self.residency[worker.name].serve(False)
            self.touched[worker.name] = None
            self._effects.append(m.KillWorker(worker.name, "stalled"))

    # what workers answer

    def news(self, event: m.Loaded | m.LoadFailed | m.KvCapacity) -> None:
        name, residency = event.worker, self.residency[event.worker]
        self.touched[name] = None
        match event:
            case m.KvCapacity(_, _, nbytes, left_alone, owned):
                residency.set_room(nbytes, left_alone if self.on_demand else None, owned)
                residency.serve(self._well(self.workers[name]))
                if why := residency.cramped(name, self.never_ready):
                    self._effects.append(m.Fatal(why))
            case m.Loaded(_, incarnation, load):
                residency.loading, residency.room_stale = None, True
                if load.holder in self.served and self.served[load.holder].here and residency.hops.get(load.holder):
                    residency.loaded(load)
                else:
                    self._effects.append(m.Unload(name, incarnation, load.holder, (*load.ids, *filter(None, load.deltas))))
            case m.LoadFailed():
                self.failures.failed(event)

    # applications

    def _deployed(self, name: str) -> bool:
        return name in self.served and self.served[name].deployed

    def _in_service(self, name: str) -> Served:
        if not self._deployed(name) or name in self.additions:
            raise KeyError(f"application {name!r} is not served; there are: {', '.join(self.blocks)}")
        return self.served[name]

    def _serve(self, applications: Sequence[m.Application]) -> None:
        """Place the new applications. Raises ValueError; then nothing has changed."""
        new: dict[str, m.Application] = {}
        for application in applications:
            name, served = application.name, self.served.get(application.name)
            known = served.application if served is not None else new.setdefault(name, application)
            if known != application:
                raise ValueError(f"application {name!r} is known with another chain; give it another name")
        lazy = {name: one for name, one in new.items() if one.on_demand and self.on_demand}
        eager = {name: one for name, one in new.items() if name not in lazy}
        self._take(eager, self.placement.of_all(eager))
        if lazy:  # each alone must fit: nothing of them is loaded yet
            self._take(lazy, [route for one in lazy.values() for route in self.placement.of_one_alone(one)])
            for name in lazy:
                self.served[name].parked = self.served[name].on_demand = True
        for name in dict.fromkeys(a.name for a in applications):
            self.offer(name)
        self.catalog()

    def _take(self, new: Mapping[str, m.Application], routes: Sequence[Route]) -> None:
        """Record applications that were unknown, and plan their routes."""
        for application in new.values():
            place = self.additions.name(application.served_as)
            self.served[application.name] = Served(application, self._ranked, place)
            self._ranked += 1
        self.placement.plan(routes)

    def perform(self, effect: m.Effect) -> None:
        """Add an effect before the publication that ends the event."""
        self._effects.append(effect)

    def offer(self, name: str, *, anew: bool = True) -> None:
        """Offer an application to the workers. ``anew``: also to workers on which it failed for good."""
        self.served[name].deployed, self.served[name].failure = True, None
        for residency in self.failures.willing(name, anew=anew):
            residency.want(name)
        self.touched.update(dict.fromkeys(self.workers))

    def _deploy(self, name: str) -> None:
        if name not in self.served:
            raise KeyError(f"application {name!r} is not known; there are: {', '.join(self.served)}")
        self.offer(name)
        self.catalog()

    def _undeploy(self, name: str) -> None:
        served = self._in_service(name)
        self.end_extras(lambda extra: extra.served is served)
        self.overload.forget(name)
        self._withdraw(served, forget=False)

    def _withdraw(self, served: Served, *, forget: bool) -> None:
        """Take an application out of service and its components out of the workers. ``forget``: for good."""
        served.deployed = served.parked = False
        self.demand.forget(served.application.name)
        self.failures.forget(served.application.name)
        self.vacate(served, forget=forget)

    def vacate(self, served: Served, *, forget: bool = False) -> None:
        name = served.application.name
        self.table.touch(served.planned)
        self.catalog()
        self.publish()  # before the components go
        for worker in self.workers.values():
            residency = self.residency[worker.name]
            self.unload(worker.name, served, residency.forget(name) if forget else residency.withdraw(name))
        self.touched.update(dict.fromkeys(self.workers))

    # applications that come and go

    def _add(self, application: m.Application, replaces: str) -> None:
        """Add an application. Raises ValueError; then nothing has changed."""
        routes, parked = self.placement.of_one(application, on_demand=self.on_demand)
        parked = parked or (self.on_demand and (application.on_demand or self.demand.nowhere_but_in_pipelines(routes)))
        self._take({application.name: application}, routes)
        served = self.served[application.name]
        served.parked = served.on_demand = parked
        served.shown = False
        self.additions.begin(application.name, replaces)
        self.offer(application.name)
        self.catalog()

    def _settle(self, name: str) -> None:
        """Bring an addition into service as soon as it is whole, or give it up."""
        served = self.served[name]
        why = self.additions.verdict(served, self.workers)
        if why:
            self.reject(name, why)
        elif why is not None:
            replaces, served.shown = self.additions.end(name), True
            self.table.touch(served.planned)
            if self._deployed(replaces):
                self._retire(replaces)  # in the same publication
            self.catalog()
            self.after.append(m.Added(name))

    def reject(self, name: str, why: str) -> None:
        self.after.append(m.Added(name, why))
        self._remove(name)

    def _retire(self, name: str) -> None:
        served = self._in_service(name)
        if not served.draining:
            served.draining = True
            self.catalog()
            self.after.append(m.FinishRequests(name))

    def _remove(self, name: str) -> None:
        if name not in self.served:
            return
        self.end_extras(lambda extra: extra.route.application == name)
        self.overload.forget(name)
        served = self.served.pop(name)
        self.additions.end(name)
        self.placement.cut()
        self._withdraw(served, forget=True)

    def catalog(self) -> None:
        """Update all that depends on the set of deployed applications.

        All known applications are cut into blocks: undeploying one moves no border, so the KV of the others stays.
        """
        deployed = {name: served for name, served in self.served.items() if served.deployed}
        self.blocks = {name: served.blocks for name, served in deployed.items()}
        shown = {name: served for name, served in deployed.items() if served.shown and not served.parked}
        self.planned = sum(len(served.planned) for served in shown.values())
        self.never_ready = {name: None for name, one in shown.items() if not (one.ever_ready or one.on_demand)}
        self.table.list_chains(self.served.values())

    # blocks deployed for a burst

    def end_extras(self, which: Callable[[PlannedRoute], bool]) -> None:
        """End routes through blocks deployed for a burst."""
        self.end_routes([extra for extra in self.placement.extras.values() if which(extra)])

    def end_routes(self, routes: Sequence[PlannedRoute]) -> None:
        """End routes, and unload what was loaded for them alone."""
        if routes:
            self.placement.end(routes)
            self.table.end(routes)
            self.catalog()
            self.publish()  # before the components go
        for ended in routes:
            for worker in workers_of(ended.route):
                self.unload(worker, ended.served, self.residency[worker].release(ended.route.application))

    def unload(self, worker: str, served: Served, depths: Iterable[int]) -> None:
        if gone := [served.application.components[d] for d in sorted(depths)]:
            ids = tuple(id for c in gone for id in (c.shared, c.delta) if id)
            self._effects.append(m.Unload(worker, self.workers[worker].incarnation, served.application.name, ids))
            self.touched[worker] = None

    # loading and publishing

    def _advance(self, worker: WorkerRecord) -> None:
        """Advance a worker as far as possible without further news."""
        residency = self.residency[worker.name]
        if not self.blocks or not self._well(worker) or residency.loading is not None:
            return
        if not residency.lacks(self.demand.coming) and residency.ask_room():
            self._effects.append(m.AskCapacity(worker.name, worker.incarnation))
        if residency.asking:
            return  # complete routes come into force before the next application loads
        residency.loading = self.overload.sourced(worker.name, residency.next_load())
        if residency.loading is None:
            worker.state = "ready"
        else:
            worker.state = "loading"
            self._effects.append(m.Load(worker.name, worker.incarnation, residency.loading))

    def publish(self) -> None:
        first = self.table.settle()
        for name in self.table.applications:  # gained a route, or lost one
            self.never_ready.pop(name, None)
            self.ever_ready = True
        if first is not None:
            self._effects.append(m.Publish(self.version, first))
