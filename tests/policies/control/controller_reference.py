"""The controller's decisions computed from scratch after every event: slow, and plain enough to be believed.

Takes the events of ``ControllerState`` and answers with its effects, from nothing but what each worker holds; nothing is
counted or remembered between events. The record of a worker's life is the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from blockwright.policies.binary_size import binary_size
from blockwright.policies.cluster.restart_policy import HOPELESS
from blockwright.policies.control import events
from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.worker_record import WorkerRecord
from blockwright.policies.model.chain import Block, Chain, Hop, Route
from blockwright.policies.model.partition import cut_blocks, hop_borders, place
from blockwright.policies.requests.admission import capacity_tokens
from blockwright.policies.requests.dispatch import UNKNOWN, workers_of
from blockwright.policies.requests.load_failure import LoadFailure, reasons
from blockwright.policies.requests.routes_changed import RoutesChanged


@dataclass
class Held:
    """What a worker has."""

    resident: dict[str, set[int]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    loading: LoadBlock | None = None
    room: int | None = None
    left_alone: dict[str, int] = field(default_factory=dict)
    room_stale: bool = True
    asking: bool = False


class Reference:
    """See the module. Of a publication ``handle`` gives the effect, ``published`` the content."""

    def __init__(self, workers: list[str], stall_timeout: float) -> None:
        self.workers = {name: WorkerRecord(name) for name in workers}
        self.held = {name: Held() for name in workers}
        self.stall_timeout = stall_timeout
        self.applications: dict[str, events.Application] = {}
        self.deployed: set[str] = set()
        self.ever_ready: set[str] = set()
        self.routes: dict[str, Route] = {}
        self.published = RoutesChanged(0, [], [], [])
        self.effects: list[events.Effect] = []
        self.failures: dict[str, LoadFailure] = {}  # the last of each application
        self.number = 0  # of the last failure of any
        self.cuts: dict[str, tuple[Block, ...]] = {}
        self.place()

    def handle(self, event: events.Event, now: float) -> list[events.Effect]:
        match event:
            case events.Serve(applications):
                self.applications.update((a.name, a) for a in applications)
                self.place()
                for application in applications:
                    self.deploy(application.name)
            case events.Deploy(name):
                self.deploy(name)
            case events.Undeploy(name):
                self.undeploy(name)
            case events.WorkerUp(name, incarnation):
                self.workers[name].rise(incarnation)
                self.held[name] = Held()
            case events.WorkerDown(name, incarnation, cause):
                if self.workers[name].ended_by(incarnation):
                    self.fall(name, incarnation, cause, now)
            case events.WorkerStarting(name, incarnation, pid):
                self.workers[name].launched(incarnation, pid, now)
            case events.WorkerCannotStart(name, incarnation, why):
                if self.workers[name].state == "starting" and incarnation == self.workers[name].last:
                    fatal = events.Fatal(f"worker {name} cannot start: {why}")
                    self.effects.append(events.KillWorker(name, f"it cannot start: {why}") if self.ever_ready else fatal)
            case events.Loaded() | events.LoadFailed() | events.KvCapacity() | events.WorkerHeartbeat():
                worker = self.workers[event.worker]
                if worker.alive and worker.incarnation == event.incarnation:
                    self.news(event)
        for name in self.workers:
            self.advance(name)
        self.publish()
        effects, self.effects = self.effects, []
        return effects

    def fall(self, name: str, incarnation: int, cause: str, now: float) -> None:
        worker = self.workers[name]
        worker.fall(incarnation, cause, now)
        self.held[name] = Held()
        deaths = worker.deaths.own if self.ever_ready else worker.deaths.count
        if deaths >= HOPELESS and not (self.ever_ready and any(w.settled(now) for w in self.workers.values())):
            self.effects.append(events.Fatal(f"worker {name} died {deaths} times while starting: {cause}"))

    def news(self, event: events.Loaded | events.LoadFailed | events.KvCapacity | events.WorkerHeartbeat) -> None:
        name, incarnation = event.worker, event.incarnation
        worker, held = self.workers[name], self.held[name]
        match event:
            case events.WorkerHeartbeat(_, _, sweep_age, waiting, running):
                worker.waiting, worker.running = waiting, running
                if sweep_age > self.stall_timeout and not worker.condemned:
                    worker.condemned = True
                    self.effects.append(events.KillWorker(name, "stalled"))
            case events.KvCapacity(_, _, nbytes, left_alone):
                held.asking = False
                held.room = nbytes
                held.left_alone = left_alone
                self.check_room(name, nbytes)
            case events.Loaded(_, _, load):
                held.loading, held.room_stale = None, True
                if load.holder in self.deployed:
                    self.arrive(name, load)
                else:
                    self.effects.append(events.Unload(name, incarnation, load.holder, tuple(load.ids)))
            case events.LoadFailed(_, _, load, message):
                held.refused[load.holder] = message
                if held.loading is not None and held.loading.holder == load.holder:  # else it was answered already
                    held.loading = None
                if load.holder in self.deployed and self.blocked(load.holder):
                    self.number += 1
                    why = reasons({one: h.refused[load.holder] for one, h in self.held.items() if load.holder in h.refused})
                    self.failures[load.holder] = LoadFailure(load.holder, self.number, why, final=True)
                if load.holder in self.deployed - self.ever_ready:
                    self.effects.append(events.Fatal(f"worker {name} cannot load {load.holder}: {message}"))

    def arrive(self, name: str, load: LoadBlock) -> None:
        """Keep what belongs there; the rest was loaded for a route that has ended."""
        hops = [
            hop for route in self.planned() if route.application == load.holder for hop in route.hops if hop.worker == name
        ]
        needed = {depth for hop in hops for depth in range(hop.first, hop.last)}
        came, here = set(range(load.first, load.last)), self.held[name].resident.setdefault(load.holder, set())
        here |= came & needed
        components = self.applications[load.holder].components
        if ids := tuple(components[depth].shared for depth in sorted(came - needed)):
            self.effects.append(events.Unload(name, self.workers[name].incarnation, load.holder, ids))

    def check_room(self, name: str, nbytes: int) -> None:
        for route in self.planned():
            for hop in route.hops:
                page = self.page_bytes(route, hop)
                new = hop.worker == name and route.application not in self.ever_ready
                if new and self.holds(route, hop) and nbytes < page:
                    left = f"worker {name} has {binary_size(nbytes)} left for sequences of {route.application}"
                    remedy = "give workers more memory (--set memory=...)"
                    self.effects.append(events.Fatal(f"{left}, less than one page of {binary_size(page)}; {remedy}"))
                    return

    def deploy(self, name: str) -> None:
        self.deployed.add(name)
        for held in self.held.values():
            held.refused.pop(name, None)

    def undeploy(self, name: str) -> None:
        self.deployed.remove(name)
        self.publish()
        for worker, held in self.held.items():
            if depths := held.resident.pop(name, None):
                ids = tuple(self.applications[name].components[d].id for d in sorted(depths))
                self.effects.append(events.Unload(worker, self.workers[worker].incarnation, name, ids))
                held.room_stale = True

    def advance(self, name: str) -> None:
        worker, held = self.workers[name], self.held[name]
        if not worker.alive or worker.condemned or held.loading is not None or not self.deployed:
            return
        wanted = {a: list(self.needs(name, a)) for a in self.applications if a in self.deployed and a not in held.refused}
        half = any(wanted.get(a) for a in held.resident)
        if held.room_stale and not held.asking and not half and held.resident:
            held.asking, held.room_stale = True, False
            self.effects.append(events.AskCapacity(name, worker.incarnation))
        if held.asking:
            return
        held.loading = next((load for loads in wanted.values() for load in loads), None)
        worker.state = "ready" if held.loading is None else "loading"
        if held.loading is not None:
            self.effects.append(events.Load(name, worker.incarnation, held.loading))

    def needs(self, name: str, application: str) -> Iterator[LoadBlock]:
        hops = [h for r in self.planned() if r.application == application for h in r.hops if h.worker == name]
        first, here = 0, self.held[name].resident.get(application, set())
        for block in self.blocks[application]:
            last = first + len(block.components)
            if any(h.first <= first and last <= h.last for h in hops) and not here >= set(range(first, last)):
                ids = [c.shared for c in block.components]
                deltas = [c.delta for c in block.components]
                one = self.applications[application]
                layers = sum(c.kv is not None for c in one.components)
                block = LoadBlock(one.files, first, last, ids, application, [], None, deltas)
                yield replace(block, length=one.max_length, layers=layers)
            first = last

    def publish(self) -> None:
        version, routes = self.published.version + 1, {}
        for route in self.planned():
            if all(self.holds(route, hop) for hop in route.hops):
                routes[route.id] = self.routes.get(route.id) or replace(route, version=version)
        chains = [
            Chain(
                a.name,
                self.cuts[a.name],
                a.max_length,
                0,
                a.model,
                a.base or a.checkpoint,
                a.created,
                place,
                a.checkpoint if a.base else "",
            )
            for place, a in enumerate(self.applications.values())
        ]
        capacity = {route.id: min(self.capacity(route, hop) for hop in route.hops) for route in routes.values()}
        alone = {route.id: min(self.capacity(route, hop, True) for hop in route.hops) for route in routes.values()}
        alone = {id: tokens for id, tokens in alone.items() if tokens}
        withdrawn = [name for name in self.applications if name not in self.deployed]
        update = RoutesChanged(
            version,
            chains,
            list(routes.values()),
            self.known,
            withdrawn,
            capacity,
            capacity_alone={id: n for id, n in alone.items() if n},
            failed=[self.failures[name] for name in self.applications if name in self.deployed and self.blocked(name)],
        )
        if replace(update, version=version - 1) != self.published:
            added = [route for id, route in routes.items() if id not in self.routes]
            first = tuple(dict.fromkeys(worker for route in added for worker in workers_of(route)))
            self.routes, self.published = routes, update
            self.ever_ready |= {route.application for route in added}
            self.effects.append(events.Publish(version, first))

    def place(self) -> None:
        """What the applications alone decide."""
        chains = {a.name: a.components for a in self.applications.values()}
        spans = {a.name: a.span for a in self.applications.values()}
        hops = {name: hop_borders(components, spans[name])[:-1] for name, components in chains.items()}
        self.blocks, self.known = cut_blocks(chains, hops), place(chains, list(self.workers), spans, version=0)
        self.cuts = {**self.blocks, **self.cuts}  # as first published

    def blocked(self, application: str) -> bool:
        """Wherever it belongs a worker that lives could not load it."""
        mine = [route for route in self.known if route.application == application]
        return all(any(application in self.held[hop.worker].refused for hop in route.hops) for route in mine)

    def planned(self) -> list[Route]:
        return [route for route in self.known if route.application in self.deployed]

    def holds(self, route: Route, hop: Hop) -> bool:
        worker, held = self.workers[hop.worker], self.held[hop.worker]
        here = held.resident.get(route.application, set())
        return worker.alive and not worker.condemned and held.room is not None and here >= set(range(hop.first, hop.last))

    def page_bytes(self, route: Route, hop: Hop) -> int:
        components = self.applications[route.application].components[hop.first : hop.last]
        return sum(c.kv.raw_bytes for c in components if c.kv is not None)

    def capacity(self, route: Route, hop: Hop, alone: bool = False) -> int:
        components = self.applications[route.application].components
        size = next((c.kv.page_size for c in components if c.kv is not None), 0)
        held = self.held[hop.worker]
        room = held.left_alone.get(route.application, UNKNOWN) if alone else held.room or 0
        return room if room == UNKNOWN else capacity_tokens(room, size, self.page_bytes(route, hop))
