"""The controller's state machine: which blocks belong on which worker, and which routes are in force.

Owns placement, loading and the versions of routes; it alone publishes them. A route is in force when every worker of it is
alive and holds its hop's components; it ends with the first of them. ``handle(event, now)`` returns the effects to
perform. Never sends, waits or reads a clock, and knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from blockwright.actors.controller.messages import (
    Application,
    AskRoom,
    Beat,
    Deploy,
    Effect,
    Event,
    Fatal,
    Kill,
    Load,
    Loaded,
    LoadFailed,
    Publish,
    Room,
    Serve,
    Undeploy,
    Unfit,
    Unload,
    WorkerDown,
    WorkerStarting,
    WorkerUp,
)
from blockwright.actors.controller.worker_record import WorkerRecord
from blockwright.actors.worker.messages import LoadBlock, RoutesUpdate
from blockwright.policies.model.chain import Block, Chain, Hop, Route
from blockwright.policies.model.partition import cut_blocks, place
from blockwright.policies.requests.admission import capacity_tokens
from blockwright.policies.requests.dispatch import workers_of

HOPELESS = 5  # deaths in a row before any worker ever was ready or, by their own doing, ever lasted: no cluster will be


@dataclass(slots=True)
class Served:
    """An application and what became of it."""

    application: Application
    deployed: bool = True
    ever_ready: bool = False  # it has had a route in force


class ControllerState:
    """See the module."""

    def __init__(self, workers: Sequence[str], *, stall_timeout: float) -> None:
        self.workers = {name: WorkerRecord(name) for name in workers}
        self.stall_timeout = stall_timeout
        self.served: dict[str, Served] = {}
        self.known_blocks: dict[str, tuple[Block, ...]] = {}  # of all applications that were ever served
        self.known_routes: list[Route] = []  # theirs, with all workers up
        self.blocks: dict[str, tuple[Block, ...]] = {}  # of deployed applications
        self.planned: list[Route] = []  # every route that would be in force with all workers up and loaded
        self.routes: dict[str, Route] = {}  # in force, by id
        self.version = 0  # of the last publication
        self.published: RoutesUpdate | None = None  # the last publication
        self._effects: list[Effect] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the effects must be performed in order."""
        match event:
            case Serve(applications):
                self.served.update({a.name: Served(a) for a in applications})
                self._replan()
            case Deploy(application):
                self._deploy(application)
            case Undeploy(application):
                self._undeploy(application)
            case WorkerStarting(name, incarnation, pid):
                self.workers[name].launched(incarnation, pid, now)
            case WorkerUp(name, incarnation):
                self.workers[name].rise(incarnation)
            case WorkerDown(name, incarnation, cause):
                if self.workers[name].ended_by(incarnation):
                    self._fall(self.workers[name], incarnation, cause, now)
            case Unfit(name, incarnation, why):
                self._unfit(self.workers[name], incarnation, why)
            case Loaded() | LoadFailed() | Room() | Beat():
                worker = self.workers[event.worker]
                if worker.alive and worker.incarnation == event.incarnation:
                    self._news(worker, event)
        self._advance()
        effects, self._effects = self._effects, []
        return effects

    def ready(self, name: str) -> bool:
        """At least one route of the application is in force."""
        return any(route.application == name for route in self.routes.values())

    @property
    def whole(self) -> bool:
        """Every planned route is in force, and there is one."""
        return bool(self.planned) and len(self.routes) == len(self.planned)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        for route in self.routes.values():
            for hop in route.hops:
                assert self.workers[hop.worker].holds(route.application, hop.first, hop.last), route.id
        assert set(self.routes) <= {route.id for route in self.planned}
        for worker in self.workers.values():
            assert bool(worker.incarnation) == worker.alive, worker.name
            assert worker.incarnation in (0, worker.last), worker.name

    # life of workers

    def _fall(self, worker: WorkerRecord, incarnation: int, cause: str, now: float) -> None:
        worker.fall(incarnation, cause, now)
        served = any(s.ever_ready for s in self.served.values())
        some_last = any(other.settled(now) for other in self.workers.values())
        if worker.deaths.hopeless(HOPELESS, proven=served, some_last=some_last):
            deaths = worker.deaths.own if served else worker.deaths.count
            self._effects.append(Fatal(f"worker {worker.name} died {deaths} times while starting: {cause}"))

    def _unfit(self, worker: WorkerRecord, incarnation: int, why: str) -> None:
        if worker.state != "starting" or incarnation != worker.last:
            return
        if any(s.ever_ready for s in self.served.values()):
            self._effects.append(Kill(worker.name, f"it cannot start: {why}"))  # what it lacks may be there next time
        else:
            self._effects.append(Fatal(f"worker {worker.name} cannot start: {why}"))

    def _news(self, worker: WorkerRecord, event: Loaded | LoadFailed | Room | Beat) -> None:
        match event:
            case Beat(_, _, sweep_age, waiting, running):
                worker.waiting, worker.running = waiting, running
                if sweep_age > self.stall_timeout and not worker.condemned:
                    worker.condemned = True
                    self._effects.append(Kill(worker.name, "stalled"))
            case Room(_, _, nbytes):
                worker.asking = False
                worker.room = nbytes
                self._check_room(worker, nbytes)
            case Loaded(_, _, load):
                worker.loading, worker.room_stale = None, True
                if self._deployed(load.holder):
                    worker.resident.setdefault(load.holder, set()).update(range(load.first, load.last))
                else:
                    self._effects.append(Unload(worker.name, worker.incarnation, load.holder, tuple(load.ids)))
            case LoadFailed(_, _, load, message):
                worker.loading = None
                worker.refused[load.holder] = message
                served = self.served[load.holder]
                if served.deployed and not served.ever_ready:
                    self._effects.append(Fatal(f"worker {worker.name} cannot load {load.holder}: {message}"))

    def _check_room(self, worker: WorkerRecord, nbytes: int) -> None:
        """A worker whose parameters leave no room for one page of a sequence can serve nobody."""
        for route in self.planned:
            served = self.served[route.application]
            for hop in route.hops:
                if (
                    hop.worker != worker.name
                    or served.ever_ready
                    or not worker.holds(route.application, hop.first, hop.last)
                ):
                    continue
                page = _page_bytes(served.application, hop)
                if nbytes < page:
                    message = (
                        f"worker {worker.name} has {nbytes} bytes left for sequences of {route.application}, less than one "
                        f"page of {page} bytes; give workers more memory (--set memory=...)"
                    )
                    self._effects.append(Fatal(message))
                    return

    # applications

    def _deployed(self, name: str) -> bool:
        return name in self.served and self.served[name].deployed

    def _deploy(self, name: str) -> None:
        if name not in self.served:
            raise KeyError(f"application {name!r} is not known; there are: {', '.join(self.served)}")
        self.served[name].deployed = True
        for worker in self.workers.values():
            worker.refused.pop(name, None)
        self._replan()

    def _undeploy(self, name: str) -> None:
        if not self._deployed(name):
            raise KeyError(f"application {name!r} is not served; there are: {', '.join(self.blocks)}")
        self.served[name].deployed = False
        self._replan()
        self._publish()  # before the components go
        components = self.served[name].application.components
        for worker in self.workers.values():
            depths = worker.resident.pop(name, None)
            if depths:
                ids = tuple(components[d].id for d in sorted(depths))
                self._effects.append(Unload(worker.name, worker.incarnation, name, ids))
                worker.room_stale = True

    def _replan(self) -> None:
        """Cut and place anew, with all known applications: undeploying one moves no border, so KV of the others stays."""
        known = [s.application for s in self.served.values()]
        chains = {a.name: a.components for a in known}
        spans = {a.name: a.span for a in known}
        self.known_blocks = cut_blocks(chains, spans)
        self.known_routes = place(chains, list(self.workers), spans, version=0)
        self.blocks = {name: blocks for name, blocks in self.known_blocks.items() if self.served[name].deployed}
        self.planned = [route for route in self.known_routes if route.application in self.blocks]

    # loading and publishing

    def _advance(self) -> None:
        """Bring everything as far as it can go without further news."""
        for worker in self.workers.values():
            if worker.alive and not worker.condemned and worker.loading is None:
                self._next_load(worker)
        self._publish()

    def _next_load(self, worker: WorkerRecord) -> None:
        for application in self.blocks:
            if application in worker.refused:
                continue
            for load in self._needs(worker, application):
                if self._ask_room(worker):
                    return  # what is complete comes into force before the next application loads
                worker.loading, worker.state = load, "loading"
                self._effects.append(Load(worker.name, worker.incarnation, load))
                return
        if self.blocks and not self._ask_room(worker):
            worker.state = "ready"

    def _ask_room(self, worker: WorkerRecord) -> bool:
        """Ask between applications only: is a question open or put now?"""
        between = all(not any(self._needs(worker, name)) for name in worker.resident)
        if worker.room_stale and not worker.asking and between and worker.resident:
            worker.asking, worker.room_stale = True, False
            self._effects.append(AskRoom(worker.name, worker.incarnation))
        return worker.asking

    def _needs(self, worker: WorkerRecord, name: str) -> Iterator[LoadBlock]:
        """Loads for the blocks of an application that belong on the worker and are not there, in order of depth."""
        if name not in self.blocks:
            return
        application = self.served[name].application
        hops = [h for r in self.planned if r.application == name for h in r.hops if h.worker == worker.name]
        here = worker.resident.get(name, set())
        first = 0
        for block in self.blocks[name]:
            last = first + len(block.components)
            wanted = any(h.first <= first and last <= h.last for h in hops)
            if wanted and not all(d in here for d in range(first, last)):
                yield LoadBlock(application.checkpoint, first, last, [c.id for c in block.components], name)
            first = last

    def _publish(self) -> None:
        version = self.version + 1
        routes = {}
        for route in self.planned:
            if all(self.workers[h.worker].holds(route.application, h.first, h.last) for h in route.hops):
                routes[route.id] = self.routes.get(route.id) or replace(route, version=version)
        chains = [Chain(n, blocks, self.served[n].application.max_length) for n, blocks in self.known_blocks.items()]
        capacity = {route.id: self._capacity(route) for route in routes.values()}
        withdrawn = [name for name in self.known_blocks if name not in self.blocks]
        update = RoutesUpdate(version, chains, list(routes.values()), self.known_routes, withdrawn, capacity)
        if self.published is not None and replace(update, version=self.version) == self.published:
            return
        added = [route for route in routes.values() if route.id not in self.routes]
        first = tuple(dict.fromkeys(worker for route in added for worker in workers_of(route)))
        self.routes, self.version, self.published = routes, version, update
        for route in added:
            self.served[route.application].ever_ready = True
        self._effects.append(Publish(update, first))

    def _capacity(self, route: Route) -> int:
        """Tokens of one sequence that the route's workers can hold: the least of its hops.

        From raw bytes, so at most a little too many: the worker, which knows its back end's padding, refuses the rest.
        """
        application = self.served[route.application].application
        size = next((c.kv.page_size for c in application.components if c.kv is not None), 0)
        rooms = ((self.workers[hop.worker].room or 0, _page_bytes(application, hop)) for hop in route.hops)
        return min(capacity_tokens(room, size, page) for room, page in rooms)


def _page_bytes(application: Application, hop: Hop) -> int:
    """Raw bytes of one page of a sequence in all layers of a hop."""
    return sum(c.kv.raw_bytes for c in application.components[hop.first : hop.last] if c.kv is not None)
