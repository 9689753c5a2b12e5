"""Control of a simulated cluster by the state machine of the live controller.

``policies/control/state.py`` decides what the instances hold and serve; this module tells it what happens, and carries out
its effects in simulated time: loads take the seconds of their bytes, starts those of the description, and requests end, go
on elsewhere, or wait for a model. So models on demand, deaths, autoscaling, and dropped parameters are those of the live
code. Each device of an instance is one worker here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial

from ..policies.cluster.demand import Use
from ..policies.control import events
from ..policies.control.drop_events import (
    AwaitSwitched,
    OverloadNote,
    RequestsSwitched,
    RoutesLeft,
)
from ..policies.control.loads import LoadBlock, NoCapacity
from ..policies.control.route_switch import SwitchRoutes
from ..policies.control.scaling import ScalingPlan
from ..policies.control.state import ControllerState
from ..policies.overload.demand import PERIOD
from ..policies.prediction.instance import Instance
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.sweep.events import Submission
from .bridging import Bridges
from .control_step import ClusterFatalError, ControlStep
from .devices import take_out
from .instances import served_applications
from .memory_drops import MemoryDrops, layered_application
from .outage_spec import DeathSpec
from .simulated_gateway import DispatchDecision
from .simulated_worker import SimulatedWorker
from .simulation import ClusterPolicy, ClusterSimulation, SimulatedRequest

STALL = 10.0  # seconds without progress that mean a hung worker, as in the settings of a live cluster
BEAT = 0.5  # seconds between heartbeats, likewise
GOING_ON = ("started", "first", "preempted")  # news of requests that have not ended


class SimulatedControl(ClusterPolicy):
    """The control of one simulated cluster (see the module)."""

    def __init__(self, cluster: ClusterSimulation, tape: list[ControlStep] | None = None) -> None:
        scenario = cluster.scenario
        self._cluster, self._tape = cluster, tape
        self._models = [model.name for model in scenario.models]
        self._began = False  # the cluster is up, and loads take time
        self._bridges: Bridges | None = None
        self._inbox: deque[events.Event] = deque()
        self._handling = False
        self._present: list[dict[int, None]] = [{} for _ in cluster.instances]  # by place: requests sent there
        self._held: dict[str, list[tuple[SimulatedRequest, Submission | None]]] = {name: [] for name in self._models}
        self._active = dict.fromkeys(self._models, 0)  # by model: requests that have not ended
        self._sent = dict.fromkeys(self._models, 0)  # by model: requests that are at an instance
        self._last: dict[str, float] = {}  # by model: when its last request ended
        self._awaited: list[str] = []  # models that must become quiet
        self._place_of: dict[int, int] = {}  # by request: the place that it was sent to
        self._leaving: set[int] = set()  # places that are to become empty
        self._stuck: dict[int, list[Submission]] = {}  # by place of an instance that makes no progress: what came since
        self._hung: set[str] = set()  # workers that make no progress
        self._renewed = False  # an instance was put in the place of one that ended
        self._down: dict[str, float] = {}  # worker that makes no progress -> seconds until it is up again once it is killed
        self._counts = Counter[str]()
        self._beaten: dict[str, int] = {}  # worker -> requests in its last heartbeat
        self.places = [*range(len(cluster.instances))]
        self.retired: list[Instance | PipelineInstance] = []
        drops = scenario.overload.mode == "drop"
        applications = [layered_application(scenario)] if drops else served_applications(scenario)
        sizes = {c.shared: c.nbytes for one in applications for c in one.components}
        sizes |= {c.delta: c.delta_nbytes for one in applications for c in one.components if c.delta}
        plans, paid = cluster.maker.plans, cluster.provisioner
        self._places = {worker: n for n, plan in enumerate(plans) for worker in plan.workers}
        self.workers = {
            name: SimulatedWorker(name, n, cluster, sizes, bool(plans[n].spec.memory), scenario.on_demand)
            for name, n in self._places.items()
        }
        memory = {name: plans[n].spec.memory for name, n in self._places.items() if plans[n].spec.memory}
        scaling = ScalingPlan(paid.rules, paid.names, scenario.provisioning.grace)
        first = [worker for plan in plans[: paid.least] for worker in plan.workers]
        self._block_idle = scenario.loading.block_idle
        self.state = ControllerState(
            first, STALL, memory=memory, block_idle=self._block_idle, on_demand=scenario.on_demand, scaling=scaling
        )
        self.drops = MemoryDrops(cluster, self.state, self.workers, self._switched) if drops else None
        if self.drops is not None:
            self.retired = self.drops.moves.retired
        self.handle(events.Serve(tuple(applications)), *(event for name in first for event in self._rise(name)))
        if scenario.varied:
            self._bridges = Bridges(cluster, self._again, self._retry)
            self.handle(self._bridges.vary(applications))
        self._began = True
        for death in scenario.deaths:
            cluster.call(death.at, partial(self._strike, death))
        if scenario.provisioning.mode != "off" or self._block_idle:
            cluster.call(BEAT, self._beat)
        if drops:
            cluster.call(0.0, self._look_at_memory)

    # the state machine -----------------------------------------------------------------------------------------------

    def handle(self, *news: events.Event) -> None:
        """Apply events, and what follows from their effects at once, in order."""
        self._inbox.extend(news)
        if self._handling:
            return
        self._handling = True
        while self._inbox:
            event = self._inbox.popleft()
            effects = self.state.handle(event, self._cluster.now)
            if self._tape is not None:
                self._tape.append(ControlStep(self._cluster.now, event, effects))
            for effect in effects:
                self._perform(effect)
            if self._renewed and self.drops is not None:
                self._join(self.drops)
        self._handling = False

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Load():
                self._load(effect)
            case events.Unload(worker, life, holder, ids) if life == self.workers[worker].life:
                self._counts["unloads"] += 1
                self.workers[worker].release(holder, ids)
            case events.AskCapacity(worker, life) if life == self.workers[worker].life:
                self.handle(self.workers[worker].capacity())
            case events.Publish():
                self._publish()
            case events.AskUsage():
                self.handle(events.UsageAnswer({name: self._use(name) for name in self._models}))
            case events.AwaitQuiet(application):
                self._awaited.append(application)
                self._look_for_quiet()
            case events.RecheckLater(seconds, worker, application):
                self._cluster.call(self._cluster.now + seconds, partial(self.handle, events.Recheck(worker, application)))
            case events.StartWorker(worker, why):
                self._note("starting", worker, why)
                self._up_after(self._cluster.scenario.provisioning.cold_start, worker)
            case events.VacateWorker(worker, grace, why):
                self._note("draining", worker, why)
                self._leaving.add(self._places[worker])
                self._cluster.call(self._cluster.now + grace, partial(self._overdue, worker, self.workers[worker].life))
                self._look_whether_empty(self._places[worker])
            case events.StopWorker(worker):
                self._renew(worker)
                self._note("stopped", worker)
                self.handle(events.WorkerStopped(worker))
            case events.KillWorker(worker, cause):
                self._die(worker, cause, self._down[worker])
            case SwitchRoutes() | AwaitSwitched() if self.drops is not None:
                self.drops.switch(effect)
            case events.Fatal(message):
                raise ClusterFatalError(message)
            case OverloadNote() | events.Unload() | events.AskCapacity():
                pass  # it is for people, or for a life that has ended
            case _:
                raise AssertionError(f"the simulator orders nothing that has the effect {effect}")

    def _look_at_memory(self) -> None:
        """Read the workers' memory, as the memory actor does, and carry out its orders."""
        assert self.drops is not None, "memory is read where parameters are dropped"
        for order in self.drops.orders():
            if not self.drops.refused(order):
                self.handle(order)
        self.drops.switches.advance()
        if not self._cluster.ended:
            self._cluster.call(self._cluster.now + PERIOD, self._look_at_memory)

    def _switched(self, event: RoutesLeft | RequestsSwitched) -> None:
        """Tell the controller of a switch. There may be other instances behind the routes than before."""
        assert self.drops is not None, "requests switch where parameters are dropped"
        self.places = self.drops.moves.current
        self.handle(event)
        self._publish()

    def _join(self, drops: MemoryDrops) -> None:
        """Begin the pipelines that are in force again after a death."""
        left = drops.join(self.state.table.news().routes)
        if drops.moves.current != self.places:
            self.places = drops.moves.current
            self._publish()
        for submission in left:
            self._again(submission)

    def _load(self, effect: events.Load) -> None:
        worker = self.workers[effect.worker]
        if effect.incarnation != worker.life or worker.name in self._hung:
            return
        answer = worker.load(effect.load)
        what = effect.worker, effect.incarnation, effect.load
        if self._began:
            self._counts["refused" if isinstance(answer, NoCapacity) else "loads"] += 1
            self._counts["loaded_bytes"] += 0 if isinstance(answer, NoCapacity) else answer
        if isinstance(answer, NoCapacity):
            self.handle(events.LoadRefused(*what, answer))
        elif self.drops is not None and (source := self.workers.get(effect.load.source)) is not None and source.up:
            self.drops.send(source.name, worker.name, answer, partial(self._sent_by, source, source.life, what, answer))
        else:
            self._read(what, answer)

    def _sent_by(self, source: SimulatedWorker, life: int, what: tuple[str, int, LoadBlock], nbytes: int) -> None:
        """End a load from another worker. If that has died meanwhile, the rest is read, and here all of it."""
        if source.up and source.life == life:
            self.handle(events.Loaded(*what))
        else:
            self._read(what, nbytes)

    def _read(self, what: tuple[str, int, LoadBlock], nbytes: int) -> None:
        """Read parameters, and tell the controller once they are there.

        At the start everything is there.
        """
        now = self._cluster.now
        if (disk := self._cluster.scenario.loading.disk) and nbytes and self._began:
            loaded = events.Loaded(*what, nbytes, nbytes / disk)
            self._cluster.call(now + nbytes / disk, partial(self.handle, loaded))
        else:
            self.handle(events.Loaded(*what))

    # lives of workers ------------------------------------------------------------------------------------------------

    def _rise(self, name: str) -> list[events.Event]:
        life = self.workers[name].rise()
        return [events.WorkerStarting(name, life, 0), events.WorkerUp(name, life)]

    def _up_after(self, seconds: float, name: str) -> None:
        def rise() -> None:
            if name in self.state.workers and not self.workers[name].up:  # else it was drained meanwhile
                self.handle(*self._rise(name))

        if seconds:
            self._cluster.call(self._cluster.now + seconds, rise)
        else:
            rise()

    def _strike(self, death: DeathSpec) -> None:
        worker = self.workers[death.instance]
        if not worker.up or self._cluster.ended:
            return
        if not death.stalls:
            self._die(death.instance, "killed", death.down)
            return
        if worker.place in self._stuck:
            return
        self._down[death.instance] = death.down
        self._hung.add(death.instance)
        self._cluster.freeze(worker.place)
        self._stuck[worker.place] = []
        self._stalled(death.instance, worker.life, self._cluster.now)

    def _stalled(self, name: str, life: int, since: float) -> None:
        """Send the heartbeats of a worker that makes no progress."""
        if self.workers[name].life == life and self.workers[name].up:
            age, requests = self._cluster.now - since, len(self._present[self._places[name]])
            self._cluster.call(self._cluster.now + BEAT, partial(self._stalled, name, life, since))
            self.handle(events.WorkerHeartbeat(name, life, age, 0, requests, 0))

    def _die(self, name: str, cause: str, down: float) -> None:
        """End the life of a worker. Its requests go on elsewhere, and its supervisor starts it again."""
        worker, place = self.workers[name], self._places[name]
        self._counts["deaths"] += 1
        self._note("died", name, cause)
        gone = {place, worker.place}
        left = self._renew(name)
        for places in self._cluster.gateway.active.values():  # gateways hear of a death before the controller
            places[:] = [other for other in places if other not in gone]
        self.handle(events.WorkerDown(name, worker.life, cause))
        self._up_after(down, name)
        for submission in left:
            self._again(submission)
        self._look_whether_empty(place)

    def _renew(self, name: str) -> list[Submission]:
        """Put a new instance, with nothing in its memory, in the place of one that ends; return what was left there."""
        place = self._places[name]
        self.workers[name].fall()  # what is on its way there goes on elsewhere, too
        self._hung.discard(name)
        self._renewed = True
        if self.drops is not None:
            left = self.drops.broken(name)
            self.places = self.drops.moves.current
            for other in [other for other in self._stuck if other not in self._cluster.frozen]:
                left += self._stuck.pop(other)
            return left
        instance = self._cluster.instances[place]
        if isinstance(instance, Instance):
            instance.catch_up(self._cluster.now)
        left = [taken.submission for taken in take_out(instance, self._cluster.now)]
        self.retired.append(self._cluster.instances[place])
        self._cluster.replace(place, *self._cluster.maker.make(place))
        for device in self._cluster.maker.plans[place].workers:
            self.workers[device].move(place)
        return left + self._stuck.pop(place, [])

    def _overdue(self, name: str, life: int) -> None:
        """Move the requests that are still at a drained worker after its grace."""
        worker, place = self.workers[name], self._places[name]
        if place in self._leaving and worker.life == life and worker.up:
            for submission in self._renew(name):
                self._again(submission)
            self._look_whether_empty(place)

    def _look_whether_empty(self, place: int) -> None:
        if place in self._leaving and not self._present[place]:
            self._leaving.remove(place)
            self.handle(events.Vacated(self._cluster.maker.plans[place].name))

    def _note(self, what: str, name: str, why: str = "") -> None:
        change = self._cluster.provisioner.note(what, self._places[name], self._cluster.now, why)
        self._cluster.record({"at": change.at, "what": what, "instance": name, "why": why})

    def _beat(self) -> None:
        """Report how many requests workers have, where that has changed, and what presses blocks or uses them no more."""
        for name, worker in self.workers.items():
            requests = len(self._present[self._places[name]])
            if worker.up and self._beaten.get(name) != requests:
                self._beaten[name] = requests
                self.handle(events.WorkerHeartbeat(name, worker.life, 0.0, 0, requests, 0))
            if worker.up and self._block_idle and name not in self._hung:
                pressed, unused = worker.uses()
                idle = [events.Idle(name, worker.life, applications) for applications in unused]
                self.handle(*([events.Pressed(name, worker.life, tuple(pressed))] if pressed else []), *idle)
        if not self._cluster.ended:
            self._cluster.call(self._cluster.now + BEAT, self._beat)

    # routes and requests ---------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Give the gateway its routes, and requests that waited for one theirs."""
        published, gateway = self.state.table.news(), self._cluster.gateway
        before = {place for places in gateway.active.values() for place in places}
        places: dict[str, set[int]] = {name: set() for name in self._models}
        if self._bridges is not None:
            self._bridges.learn(published, lambda worker: self.workers[worker].place)
        for route in (route for route in published.routes if route.application in places):
            place = self.workers[route.home].place
            places[route.application].add(place)
            if self._cluster.scenario.on_demand:
                gateway.rooms.setdefault(route.application, {})[place] = published.capacity[route.id]
        gateway.active = {name: sorted(some) for name, some in places.items()}
        if self._began:
            started = {place for some in places.values() for place in some} - before
            for place in sorted(started & self._cluster.provisioner.starting):
                self._note("active", self._cluster.maker.plans[place].name)
        for name in self._models:
            self._retry(name)
        absent = [name for name in published.on_demand if self._held[name] and not places[name]]
        if absent:
            self._want(absent)  # earlier ones may have come too early
        for failed in published.failed:
            if failed.final:
                self._give_up(failed.application, failed.why)

    def _retry(self, model: str) -> None:
        """Dispatch the requests of a model that wait for an instance, as far as there is one."""
        held, self._held[model] = self._held[model], []
        for request, submission in held:
            self._dispatch(request, submission)

    def _has_place(self, request: SimulatedRequest) -> bool:
        """Return whether an instance can have a request, of its model or, while that is not loaded, of an equivalent."""
        own = self._cluster.gateway.places(request.demand)
        return bool(own) or (self._bridges is not None and self._bridges.begins(request))

    def _dispatch(self, request: SimulatedRequest, submission: Submission | None) -> None:
        """Dispatch a request, or hold it until there is an instance for it."""
        if self._has_place(request):
            self._cluster.dispatch(request, submission)
        else:
            self._held[request.demand.model].append((request, submission))
        self._cluster.gateway.held = sum(map(len, self._held.values()))

    def _give_up(self, model: str, why: str) -> None:
        held, self._held[model] = self._held[model], []
        for request, _ in held:
            self._cluster.gateway.end(model, self._cluster.now)
            self._cluster.fail(request, why)
            self._ended(request)
        self._cluster.gateway.held = sum(map(len, self._held.values()))

    def _again(self, submission: Submission) -> None:
        """Send a request again that was at an instance which has ended."""
        request = self._cluster.requests[int(submission.request[1:])]
        request.restarts += 1
        self._counts["restarts"] += 1
        self._sent[request.demand.model] -= not request.serves
        request.serves = ""
        self._gone(request.demand.number)
        self._dispatch(request, submission)
        self._ask_for(request)

    def _ask_for(self, request: SimulatedRequest) -> None:
        """Ask the controller for a model that a request waits for."""
        if (waiting := self._held[request.demand.model]) and waiting[-1][0] is request:
            self._want([request.demand.model])

    def _want(self, models: Sequence[str]) -> None:
        self.handle(events.ApplicationsWanted({name: self._use(name).waits for name in models}))

    def _use(self, model: str) -> Use:
        active, waits = self._active[model], [request.demand.total for request, _ in self._held[model]]
        waits += [] if self._bridges is None else self._bridges.waits(model)
        idle = 0.0 if active else self._cluster.now - self._last.get(model, float("-inf"))
        return Use(active, idle, max(waits, default=0))

    def _look_for_quiet(self) -> None:
        for model in [name for name in self._awaited if not self._sent[name]]:
            self._awaited.remove(model)
            self.handle(events.Quiet(model))

    def _ended(self, request: SimulatedRequest) -> None:
        self._active[request.demand.model] -= 1
        self._last[request.demand.model] = self._cluster.now

    def _observe(self, measured: float = 0.0, predicted: float = 0.0) -> None:
        if self._cluster.scenario.provisioning.mode != "off":
            self.handle(events.Observed(measured, predicted))

    # the cluster asks ------------------------------------------------------------------------------------------------

    def admits(self, request: SimulatedRequest) -> bool:
        """Return whether an instance can have a request; otherwise hold it, and ask the controller for its model.

        The age of the oldest request counts as an observed latency; that comes first, so that the request is not sent to an
        instance that is drained now.
        """
        if (oldest := self._cluster.oldest()) is not None:
            self._observe(measured=self._cluster.now - oldest.demand.at)
        self._active[request.demand.model] += 1
        if self._has_place(request):
            return True
        self._dispatch(request, None)
        self._ask_for(request)
        return False

    def placed(self, request: SimulatedRequest, placing: DispatchDecision) -> DispatchDecision:
        """Return the decision; an instance that starts by its forecast and is ready at once gets the request."""
        gateway, model = self._cluster.gateway, request.demand.model
        if gateway.predicts:
            before = {*gateway.active[model]}
            self._observe(predicted=placing.predicted)
            for place in (place for place in gateway.places(request.demand) if place not in before):
                compared, loads = [*placing.compared, place], [*placing.loads, None]
                placing = DispatchDecision(place, compared, loads, placing.predicted)
        self._put(request.demand.number, placing.place)
        self._sent[model] += not placing.serves
        if self._bridges is not None and self._bridges.put(request, placing.place, placing.serves):
            self._want([model])
        return placing

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Return the instance that a submission goes to now. If its worker has ended, send it again."""
        at = place if self.drops is None else self.drops.moves.at[place]
        if at in self._stuck:
            self._stuck[at].append(submission)
            return None
        if self._bridges is not None and not self._bridges.serves(
            self._cluster.requests[int(submission.request[1:])], place
        ):
            self._again(submission)
            return None
        if not all(self.workers[worker].up for worker in self._cluster.maker.plans[place].workers):
            self._again(submission)
            return None
        found = (place, submission) if self.drops is None else self.drops.switches.redirect(place, submission)
        if found is not None:
            self._put(int(submission.request[1:]), found[0])
        return found

    def _put(self, request: int, place: int) -> None:
        """Note where a request is now."""
        if self._place_of.get(request) != place:
            self._gone(request)
            self._place_of[request] = place
            self._present[place][request] = None

    def _gone(self, request: int) -> None:
        """Note that a request is not where it was."""
        if self._bridges is not None:
            self._bridges.gone(request)
        if (place := self._place_of.pop(request, None)) is not None:
            del self._present[place][request]
            self._look_whether_empty(place)

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Release the pages of sequences that have started after a move."""
        if self.drops is not None:
            self.drops.moves.release_started(news)

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Note the requests that have ended, and what that allows."""
        for id, what in news:
            if what not in GOING_ON:
                request = self._cluster.requests[int(id[1:])]
                self._sent[request.demand.model] -= not request.serves
                self._ended(request)
                self._gone(request.demand.number)
                self._observe(measured=request.ended - request.demand.at)
        if self._awaited:
            self._look_for_quiet()

    def finish(self) -> None:
        """Fail the requests that still wait for an instance: nothing happens any more."""
        for model in self._models:
            self._give_up(model, f"no instance serves {model}")

    def report(self) -> dict[str, object] | None:
        """Return the figures of drops, as in ``docs/schemas/simulate.json``."""
        return None if self.drops is None else self.drops.report()

    def counts(self) -> dict[str, int]:
        """Return how often what happened after the start, as in ``docs/schemas/simulate.json``."""
        names = ("loads", "loaded_bytes", "refused", "unloads", "deaths", "restarts")
        return {name: self._counts[name] for name in names}
