"""The controller actor: carries out the decisions of its state machine by calling workers, their processes and gateways.

Owns the tasks that wait for loads and publications; decides nothing itself. Calls to one worker are made in order. At rest
no timer runs, and a heartbeat costs work for its own worker only.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ...policies.cluster.adapter_base import WholeModel
from ...policies.cluster.application_life import check_default, model_of
from ...policies.cluster.scaling import PressedBlock
from ...policies.cluster.worker_size import CARD, SizeDemand, WorkerReading, WorkerReport, WorkerSizes, card_memory
from ...policies.control import events
from ...policies.control.adoption import StateKeeping, ToldWorker, came_back, configured, first_words, unclaimed
from ...policies.control.drop_events import MemoryGroups, MemoryOrder, OverloadNote
from ...policies.control.drop_groups import memory_groups, refusal, refused_workers
from ...policies.control.drops_view import overload_view
from ...policies.control.families import members
from ...policies.control.residency import is_hidden, not_served, serving, whole_models
from ...policies.control.state import ControllerState
from ...runtime.actor.actor import Actor, PeerInfo
from ...runtime.actor.endpoint import endpoint
from ...runtime.cluster.process import Process
from ..block.messages import BlockStatus
from ..conditions import Conditions, Published
from ..gateway.port import ApplicationView, Census, DrainAnswered, RemovalView
from ..predictor.admission import PREDICTOR_ADMISSION
from ..settings.logs import LogSettings
from ..worker.messages import WorkerStatus
from .event_log import ControlRecorder
from .gateway_calls import GatewayCalls
from .history import History
from .progress import Progress
from .publisher import RoutePublisher
from .view import (
    application_view,
    claims_view,
    cluster_view,
    placement_view,
    releases_view,
    removal_view,
    succession_view,
)
from .worker_calls import ANSWER_TIMEOUT, WorkerCalls, drain_worker

log = logging.getLogger("blockwright.controller")
VIEW_TIMEOUT = 1.0  # timeout of a worker's status in a cluster view
BLOCKS_SHOWN = 16  # blocks shown of each worker, the longest queues first
KEEP = 256  # failures of additions that are kept


class Controller(Actor):
    """The controller of a cluster (see the module).

    state: owned by this actor from here on. gateways: addresses of the gateways at the start; every gateway hears of
    workers and routes from here. progress: the published progress of the cluster.
    has_cards: an actor of the head reads cards. sizes: settles what each worker gets of its machine; None: workers report
    nothing. logs: settings of the event log; None: there is none. keeping: members keep the state for the next head;
    None: they end with this one. doubts: returns why this head takes no member for down, while it reaches few of them.
    """

    def __init__(
        self,
        state: ControllerState,
        gateways: Sequence[str],
        progress: Published[Progress],
        has_cards: bool = False,
        sizes: WorkerSizes | None = None,
        logs: LogSettings | None = None,
        keeping: StateKeeping | None = None,
        doubts: Callable[[], str] = str,
    ) -> None:
        self._state = state
        self._keeping, self._doubts = keeping, doubts
        self._adopted = keeping.adopted if keeping is not None else None
        self._late_grace = keeping.grace if keeping is not None else 0.0
        self._held_back: list[events.Effect] | None = None  # effects, until the actors that they are for have been started
        self._known_sizes, self._logs = sizes, logs
        self._recorder: ControlRecorder | None = None
        self._gateways, self._progress = list(gateways), progress
        self._has_cards, self._fatal = has_cards, ""
        self._warnings: list[str] = []
        self._traffic: dict[str, tuple[Any, float]] = {}  # worker -> what was taken of its traffic, and when
        self._preparing: dict[str, str] = {}  # worker -> how far its kernels are
        self._tasks: set[asyncio.Task[None]] = set()
        self._history = History()
        self._conditions = Conditions()
        self._failed: OrderedDict[str, str] = OrderedDict()  # application that could not be added -> why; the last ``KEEP``
        self._grace: dict[str, float] = {}  # application to be removed -> seconds its requests have

    async def on_start(self) -> None:
        self._publisher = RoutePublisher(self.node, self._state, self._gateways, keeps=self._keeping is not None)
        self._calls = WorkerCalls(
            self.node, self._publisher.lock, self.handle, self._kill, self._state, outlived=self._keeping is not None
        )
        self._gateway_calls = GatewayCalls(self.node, self._gateways, self._publisher.lock, self._state)
        self._deafen = self.node.on_heartbeat(self._beat)
        if self._logs is not None and self._logs.event_log:
            self._recorder = ControlRecorder(self._state, self._logs, self.node.incarnation)
        if self._adopted is not None:
            self._held_back = []
            for event in self._adopted.events:
                self.handle(event)

    async def on_stop(self) -> None:
        self._deafen()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._recorder is not None:
            self._recorder.close()

    # messages

    @endpoint
    async def take_over(self) -> None:
        """Begin to act on what a new head has found, now that the actors that it needs have been started."""
        effects, self._held_back = self._held_back or [], None
        words = first_words(self._state)
        self._gateway_calls.tell_lives(self._gateways, words.lives)
        for effect in effects:
            self._perform(effect)
        if words.drops:
            self.node.ref(f"{self.node.name}/memory").wake.cast()

    @endpoint
    async def serve(self, applications: list[events.Application]) -> None:
        """Serve these applications, which are hashed already: load them."""
        for event in configured(self._state, self._adopted, applications):
            self.handle(event)
        for effect in unclaimed(self._state, self._adopted):
            self._perform(effect)
        self._adopted = None

    @endpoint
    async def vary(self, applications: list[events.Application]) -> None:
        """Let these variants, and no others, serve in place of served applications, where all of their components are."""
        self.handle(events.Vary(tuple(applications)))

    @endpoint
    async def deploy(self, application: str) -> None:
        """Serve a known application (again). KeyError for an unknown one."""
        self.handle(events.Deploy(application))

    @endpoint(concurrent=True)  # a worker that does not answer must not keep deaths and starts waiting
    async def undeploy(self, application: str) -> None:
        """Withdraw an application and unload the blocks that no other needs; return when they are unloaded."""
        await asyncio.gather(*map(asyncio.shield, self.handle(events.Undeploy(application))))

    @endpoint
    async def add(self, application: events.Application, *, replace: bool, grace: float) -> str:
        """Begin to serve one more application as ``application.model``; return its name, for ``settled``.

        Adding what is served already is no error. replace: take the place of that model's application, whose requests get
        ``grace`` seconds to end. Raises Conflict, LookupError (no such model), ValueError (it cannot be served here).
        """
        name, replaced = self._state.additions.admit(application, replace, self._state.served)
        if replaced is not None:
            self.handle(events.Add(dataclasses.replace(application, name=name), replaced))
            if replaced:
                self._grace[replaced] = grace
        return name

    @endpoint
    async def served(self) -> list[events.Application]:
        """Return the applications that take new requests."""
        every = [one for one in self._state.served.values() if one.deployed and one.shown and not one.draining]
        return [one.application for one in every if not one.variant]

    @endpoint
    async def wholes(self) -> list[WholeModel]:
        """Return the models that an adapter can be put on."""
        return whole_models(self._state.served)

    @endpoint(concurrent=True)
    async def settled(self, application: str) -> str:
        """Return "" once all gateways serve an added application, or the reason why it cannot be served.

        The answer is "" too if it was removed meanwhile, since nothing was wrong with it; ``application`` then returns
        None.
        """
        await self._conditions.until(lambda: application not in self._state.additions)
        if application not in self._state.served:
            return self._failed.get(application, "")
        version = self._state.version
        calls = [self.node.ref(gateway).knows(version, timeout=ANSWER_TIMEOUT) for gateway in self._gateways]
        await asyncio.gather(*calls, return_exceptions=True)  # a gateway that is late or gone is notified again, or asks
        return ""

    @endpoint
    async def retire(
        self, model: str, grace: float, default: str = "", *, hidden: bool = False
    ) -> tuple[list[str], RemovalView]:
        """Begin to remove a model, with its tiers: no new requests, and ``grace`` seconds for the running ones.

        Return their names, for ``removed``, and the consequences. ``default``: see ``GatewayPort.remove_application``.
        hidden: it is a chain without a name for people, which goes with its model. Raises LookupError or Conflict.
        """
        state = self._state
        known = serving(state.served, model)
        if known is None or is_hidden(known.application) != hidden:
            raise not_served(state.served, model)
        family = [served.application for served in members(state.served, known)]
        after = serving(state.served, default)
        if default and (not removal_view(state, known, default).answered or (after and is_hidden(after.application))):
            raise not_served(state.served, default, besides=model)
        for one in family:
            check_default(one.served_as, state.table.default if state.default_is_set else "", default)
            if one.name not in state.additions:
                state.additions.check_settled(one.served_as, one.name)
        view = removal_view(state, known, default)
        for one in family:
            if one.name in state.additions:
                self.handle(events.Remove(one.name))
                continue
            self._grace[one.name] = grace
            self.handle(events.Retire(one.name, default))
        return [one.name for one in family], view

    @endpoint(concurrent=True)
    async def removed(self, application: str) -> None:
        """Return when nothing is left of an application."""
        await self._conditions.until(lambda: application not in self._grace and application not in self._state.served)

    @endpoint
    async def application(self, application: str) -> ApplicationView | None:
        """Return the view of a known application, or None."""
        served = self._state.served.get(application)
        return application_view(self._state, served) if served is not None else None

    @endpoint(urgent=True)
    async def wanted(self, applications: dict[str, int]) -> None:  # see ``ApplicationsWanted``
        self.handle(events.ApplicationsWanted(applications))

    @endpoint
    async def unfit(self, worker: str, incarnation: int, why: str) -> None:
        """Note that a worker cannot start; it waits to be ended."""
        self.handle(events.WorkerCannotStart(worker, incarnation, why))

    @endpoint
    async def pressed(self, worker: str, incarnation: int, blocks: list[PressedBlock]) -> None:
        """Note that blocks of a worker have nearly as long a queue as its memory allows."""
        self.handle(events.Pressed(worker, incarnation, tuple(blocks)))

    @endpoint
    async def idle(self, worker: str, incarnation: int, applications: list[str]) -> None:
        """Note that a block deployed for a burst, for one of these applications, is not used any more."""
        self.handle(events.Idle(worker, incarnation, tuple(applications)))

    @endpoint
    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        """Begin to move everything off a worker and send nothing there; with ``drain`` false, serve there again."""
        return drain_worker(self._state, worker, drain, self.handle)

    @endpoint
    async def observed(self, measured: float, predicted: float) -> None:
        """Take a gateway's ``Observations`` since its last report."""
        self.handle(events.Observed(measured, predicted))

    @endpoint
    async def recovered(self, worker: str, outcome: str) -> None:
        """Note how a gateway's requests recovered from that worker's death."""
        self._history.record(self.node.clock.now(), "recovered", worker, outcome)

    @endpoint
    async def groups(self, known: int) -> MemoryGroups | None:
        """Return the groups that hold parameters, or None if the memory actor knows the current version."""
        return memory_groups(self._state, known)

    @endpoint
    async def change_parameters(self, order: MemoryOrder) -> str:
        """Begin to drop or restore parameters; return "", or why that is impossible."""
        if not (why := refusal(self._state, order)):
            self.handle(order)
        return why

    @endpoint(urgent=True)
    async def machine(self, machine: str) -> WorkerReading | None:
        """Return what another worker found on a machine, or None."""
        return self._sizes.known(machine)

    @endpoint(urgent=True)
    async def join(self, worker: str, incarnation: int, reading: WorkerReading) -> WorkerReport:
        """Take what a worker has, and return its share. Raises SizeRefused if a setting demands more."""
        new = self._sizes.known(reading.machine) is None
        report = self._sizes.report(worker, reading, self._state.workers)
        if new and reading.notice:
            log.log(logging.WARNING if report.device == "cpu" else logging.INFO, "%s", reading.notice)
        if new and report.device.startswith(CARD):
            log.info("%s", card_memory(report, self._sizes.rules))
        self.handle(events.WorkerReported(worker, incarnation, report))
        return report

    @endpoint(concurrent=True)
    async def enlist(self, worker: str, incarnation: int, demand: SizeDemand, labels: dict[str, str]) -> None:
        """Take in a worker that has joined by itself, once models are placed and its former life is forgotten.

        Raises ValueError if it ended meanwhile.
        """
        await self._conditions.until(lambda: self._state.serving.placed and worker not in self._state.workers)
        peer = self.node.peers().get(worker)
        if peer is None or peer.id.incarnation != incarnation:
            raise ValueError(f"worker {worker} ended before it was taken in")
        self.handle(events.WorkerEnters(worker, labels))
        self._sizes.demand(worker, demand)
        self.handle(events.WorkerStarting(worker, incarnation, 0))

    @endpoint
    async def launched(self, worker: str, incarnation: int, demand: SizeDemand, labels: dict[str, str]) -> None:
        """Take in a worker that a launcher started elsewhere. Raises ValueError if it is not wanted any more."""
        record = self._state.workers.get(worker)
        if record is None or record.last > incarnation:
            raise ValueError(f"worker {worker} is not wanted any more")
        self.handle(events.WorkerEnters(worker, labels))
        self._sizes.demand(worker, demand)

    @endpoint
    async def leave(self, worker: str, incarnation: int, why: str) -> None:
        """Begin to empty a worker elsewhere; then it is dismissed, or ended if a launcher started it."""
        record = self._state.workers.get(worker)
        if record is not None and record.last == incarnation:
            self.handle(events.WorkerLeaves(worker, why))

    @endpoint
    async def crowded(self) -> str:
        """Return a host on which the processes of workers may not map as much as they like, or an empty text."""
        reports = [worker.report for worker in self._state.workers.values() if worker.report is not None]
        return next((report.host for report in reports if report.addresses_limited), "")

    @property
    def _sizes(self) -> WorkerSizes:
        assert self._known_sizes is not None, "the workers of this cluster report nothing"
        return self._known_sizes

    @endpoint(urgent=True)
    async def worker_starting(self, worker: str, incarnation: int, pid: int) -> None:
        self.handle(events.WorkerStarting(worker, incarnation, pid))

    @endpoint(urgent=True)
    async def worker_up(self, worker: str, incarnation: int) -> None:
        if worker not in self._state.workers:
            return  # it was drained and forgotten, or was never taken in
        for gateway in self._gateways:  # before any route through it
            self.node.ref(gateway).up.cast(worker, incarnation)
        self.handle(events.WorkerUp(worker, incarnation))

    @endpoint(urgent=True)
    async def worker_down(self, worker: str, incarnation: int, cause: str) -> None:
        for gateway in self._gateways:
            self.node.ref(gateway).down.cast(worker, incarnation, cause)
        self.handle(events.WorkerDown(worker, incarnation, cause))

    @endpoint(concurrent=True)
    async def worker_back(self, worker: str, incarnation: int) -> None:
        """Take back a worker that came later than others to a new head, or had lost its way to this one."""
        record = self._state.workers.get(worker)
        if record is None or record.alive:
            return  # it is not wanted any more, or nothing has changed
        told: ToldWorker = await self.node.ref(f"{worker}/blocks#{incarnation}").tell(returns=ToldWorker)
        for event in came_back(told):
            self.handle(event)
        for gateway in self._gateways:
            self.node.ref(gateway).up.cast(worker, incarnation)

    @endpoint(urgent=True)
    async def gateway_up(self, gateway: str) -> None:
        """Tell a gateway on another node that is new, or has come back, the current state. It hears of every change."""
        self._publisher.forget(gateway)
        self._gateway_calls.tell_lives([gateway], first_words(self._state).lives)
        self._spawn(self._publisher.introduce(gateway))
        if gateway not in self._gateways:
            self._history.record(self.node.clock.now(), "gateway", gateway, f"a further process answers HTTP: {gateway}")
            self._gateways.append(gateway)
        self._gateway_calls.tell_fronts()

    @endpoint(urgent=True)
    async def cuts(self, pairs: list[tuple[str, str]]) -> None:
        """Tell the gateways which pairs of workers do not reach each other: all of them, whenever they change."""
        self._gateway_calls.tell_cuts(pairs)

    @endpoint(urgent=True)
    async def gateway_down(self, gateway: str) -> None:
        """Forget a gateway that ended; its requests ended with it."""
        if gateway in self._gateways:
            self._gateways.remove(gateway)
            self._publisher.forget(gateway)
            self._gateway_calls.tell_fronts()
            self._history.record(self.node.clock.now(), "gateway", gateway, f"a process that answered HTTP ended: {gateway}")

    @endpoint(urgent=True)
    async def dispatchers(self, addresses: list[str]) -> None:
        """Tell all gateways which dispatchers there are, now that some may be on other machines."""
        self._gateway_calls.tell_dispatchers(addresses)

    @endpoint
    async def claims(self, workers: list[str], models: list[str]) -> list[dict[str, Any]]:
        """Return who claims components of these models on workers, and why."""
        return claims_view(self._state, workers, models)

    @endpoint(concurrent=True)
    async def cluster(self) -> dict[str, Any]:
        """Return the body of ``/admin/cluster``."""
        names = [name for name, worker in self._state.workers.items() if worker.alive]
        asked: list[Coroutine[Any, Any, Any]] = [self._calls.status(name, VIEW_TIMEOUT) for name in names]
        for name in names:
            deployed = self.node.ref(f"{name}/blocks")
            asked.append(deployed.statuses(BLOCKS_SHOWN, timeout=VIEW_TIMEOUT, returns=list[BlockStatus]))
        for gateway in self._gateways:
            asked.append(self.node.ref(gateway).sequences(timeout=VIEW_TIMEOUT, returns=dict[str, Census]))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        statuses = {name: a for name, a in zip(names, answers, strict=False) if isinstance(a, WorkerStatus)}
        blocks = {name: a for name, a in zip(names, answers[len(names) :], strict=False) if isinstance(a, list)}
        sequences = [a for a in answers[2 * len(names) :] if isinstance(a, dict)]
        now, wall = self.node.clock.now(), time.time()
        predictors: dict[str, Any] = {}
        for peer in self.node.peers().values():
            predictors |= peer.payload.get("predictors", {})
        view = cluster_view(self._state, statuses, blocks, sequences, self._history.view(now, wall), predictors)
        if self._state.overload.watched:
            asked_memory = self.node.ref(f"{self.node.name}/memory").view(timeout=VIEW_TIMEOUT, returns=dict[str, Any])
            memory_view = (await asyncio.gather(asked_memory, return_exceptions=True))[0]
            more = {"refused": refused_workers(self._state)} | (memory_view if isinstance(memory_view, dict) else {})
            view["overload"] = overload_view(self._state.overload, self._state.served, self._state.workers, now, wall) | more
        view |= releases_view(self.node.releases(), self.node.refused_releases(), self._state.workers, self._gateways)
        return view | {
            "gateways": await self._gateway_calls.statuses(),
            "cards": await self._cards(),
            "autoscale": self._state.scaling.view(now, wall),
            "placement": placement_view(self._state, now, wall),
            "doubts": self._doubts(),
            "succession": succession_view(self.node.incarnation, self._keeping),
            "predictors": await self._shown(PREDICTOR_ADMISSION),
        }

    async def _shown(self, actor: str) -> list[dict[str, Any]]:
        """Return what another actor of the head shows; nothing where there is none."""
        asked = self.node.ref(f"{self.node.name}/{actor}").view(timeout=VIEW_TIMEOUT, returns=list[dict[str, Any]])
        found = (await asyncio.gather(asked, return_exceptions=True))[0]
        return found if isinstance(found, list) else []

    async def _cards(self) -> list[dict[str, Any]]:
        used = {worker.report.device for worker in self._state.workers.values() if worker.report is not None}
        cards = await self._shown("cards") if self._has_cards else []
        return [card for card in cards if not used or card["id"] in used]

    # the shell

    def handle(self, event: events.Event) -> list[asyncio.Task[None]]:
        """Apply an event; return the tasks that carry out its effects."""
        now = self.node.clock.now()
        effects = (self._recorder or self._state).handle(event, now)
        if self._held_back is not None:
            self._held_back += effects
            return []
        tasks = [task for effect in effects if (task := self._perform(effect)) is not None]
        if self._state.changed or effects:
            self._history.tick(self._state, now)
            self._tell()
            self._conditions.tick()
        return tasks

    def _tell(self) -> None:
        state, warnings = self._state, tuple(self._warnings)
        preparing = tuple(f"{name} prepares its kernels: {text}" for name, text in self._preparing.items())
        self._progress.publish(
            Progress(state.all_up, state.serves, state.whole, state.version, preparing, warnings, self._fatal)
        )

    def _perform(self, effect: events.Effect) -> asyncio.Task[None] | None:
        match effect:
            case events.KillWorker(worker, cause):
                self._kill(worker, cause)
            case events.Load(worker, _, load):
                if load.sources is not None:
                    whence, model = ", ".join(load.sources) or "the origin", model_of(load.holder)
                    text = f"worker {worker} has no files of {model} and takes its parameters from {whence}"
                    self._history.record(self.node.clock.now(), "parameters", worker, text)
                return self._spawn(self._calls.load(effect))
            case events.AskCapacity():
                return self._spawn(self._ask_room(effect))
            case events.Publish(_, first):
                self._publisher.put_first(first)
                return self._spawn(self._publisher.publish())
            case events.Unload():
                return self._spawn(self._calls.unload(effect))
            case events.Added(application, error):
                if error:
                    self._failed[application] = error
                    if len(self._failed) > KEEP:
                        self._failed.popitem(last=False)
            case OverloadNote(group, text):
                self._history.record(self.node.clock.now(), "overload", group, text)
            case events.FinishRequests(application):
                return self._spawn(self._drain(application))
            case events.Fatal(message):
                log.info("%s", message)  # the process that started the cluster shows it to the user
                self._fatal = self._fatal or message
            case _ if isinstance(effect, events.DemandEffect):
                return self._spawn(self._gateway_calls.demand(effect, self.handle))
            case _ if isinstance(effect, events.ScalingEffect):
                self._history.scaled(effect, self.node.clock.now())
                return self._spawn(self._gateway_calls.scale(effect, self.handle))
            case _:
                return self._spawn(self._gateway_calls.switch(effect, self.handle))
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, context=contextvars.Context())  # own context: the caller may stop waiting for it
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the controller failed", exc_info=error)

    def _beat(self, peer: PeerInfo) -> None:
        name = peer.id.name
        if name in self._state.workers:
            said = [peer.payload.get(key, 0) for key in ("sweep_age", "waiting", "running", "routes")]
            self.handle(events.WorkerHeartbeat(name, peer.id.incarnation, *said))
            self._count(name, peer)
            if (text := peer.payload.get("preparing", "")) != self._preparing.get(name, ""):
                self._preparing[name] = text
                self._preparing = {name: text for name, text in self._preparing.items() if text}
                self._tell()
        if self._publisher.hear(peer):
            self._spawn(self._publisher.repeat(peer))

    def _count(self, worker: str, peer: PeerInfo) -> None:
        """Take what a heartbeat says of traffic, if that is new and the last time is long enough ago."""
        told, now = peer.payload.get("traffic"), self.node.clock.now()
        last, at = self._traffic.get(worker, (None, 0.0))
        if told is None or told == last or (last is not None and now - at < self._state.relocations.every):
            return
        self._traffic[worker] = told, now
        passages = {name: (sweeps, positions) for name, (sweeps, positions) in told["passages"].items()}
        sent = tuple(events.BorderTraffic(*one) for one in told["sent"])
        self.handle(events.TrafficCounted(worker, peer.id.incarnation, passages, sent))

    def _kill(self, worker: str, cause: str) -> None:
        """Kill a worker without waiting; its end is reported like any other."""
        log.warning("worker %s is killed: %s", worker, cause)
        self.node.ref(f"{self.node.name}/{worker}", Process).kill.cast(cause)

    async def _drain(self, application: str) -> None:
        """Remove an application once no gateway has a request of it, or the time is over."""
        version, grace = await self._publisher.out(), self._grace.setdefault(application, self._late_grace)
        asked = [self.node.ref(g).drained(application, version, timeout=max(grace, 1e-3)) for g in self._gateways]
        await asyncio.gather(*asked, return_exceptions=True)  # a gateway that is gone has none; a late one ends them
        try:
            await asyncio.gather(*self.handle(events.Remove(application)))
        finally:
            del self._grace[application]
            self._conditions.tick()

    async def _ask_room(self, effect: events.AskCapacity) -> None:
        if (status := await self._calls.room(effect)) is not None:
            depend = f"results may depend on the batch: {why}" if (why := status.proof.get("why")) else ""
            for warning in (status.slow, depend):
                if warning and warning not in self._warnings:  # all workers of one machine report the same
                    self._warnings.append(warning)
            self.handle(status.capacity)
