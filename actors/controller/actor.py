"""The controller actor: performs what its state machine decides, by endpoints of workers, their processes and gateways.

Owns the tasks that wait for loads and publications; decides nothing itself. Publications leave one after the
other, in order of their versions; what is asked of one worker is asked in order too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from blockwright.actors.conditions import Published
from blockwright.actors.controller.history import History
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
from blockwright.actors.controller.state import ControllerState
from blockwright.actors.controller.view import cluster_view
from blockwright.actors.worker.messages import BlockLoaded, RoutesUpdate, WorkerStatus
from blockwright.runtime.actor.actor import Actor, endpoint
from blockwright.runtime.actor.ref import Ref
from blockwright.runtime.base.clock import Timer
from blockwright.runtime.base.errors import NodeDown, RemoteError, RuntimeFault
from blockwright.runtime.cluster.process import Process

log = logging.getLogger("blockwright.controller")
TICK = 0.1  # seconds between looks at heartbeats
LOAD_TIMEOUT = 600.0  # of one block
ANSWER_TIMEOUT = 5.0  # of a worker that only has to look something up
VIEW_TIMEOUT = 1.0  # of a worker's status when somebody looks at the cluster


@dataclass(frozen=True, slots=True)
class Progress:
    """What the controller publishes of itself, after every event that changes it."""

    workers_up: bool = False  # all of them
    serves: bool = False  # every deployed application has a route in force
    whole: bool = False  # every planned route is in force
    version: int = 0  # of the last publication of routes
    warnings: tuple[str, ...] = ()  # what whoever started the cluster should hear, though it serves
    fatal: str = ""  # why the cluster cannot serve


class Controller(Actor):
    """See the module.

    gateways: addresses of those that are there from the beginning; every gateway hears of workers and routes from here.
    """

    def __init__(
        self, workers: Sequence[str], stall_timeout: float, gateways: Sequence[str], progress: Published[Progress]
    ) -> None:
        self._state = ControllerState(workers, stall_timeout=stall_timeout)
        self._gateways, self._progress = list(gateways), progress
        self._warnings: list[str] = []
        self._fatal = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = {name: asyncio.Lock() for name in workers}  # what is asked of one worker
        self._publishing = asyncio.Lock()
        self._heard: dict[str, float] = {}
        self._history = History()
        self._timer: Timer | None = None

    async def on_start(self) -> None:
        self._tick()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # messages

    @endpoint
    async def serve(self, applications: list[Application]) -> None:
        """The applications are hashed: load them."""
        self._handle(Serve(tuple(applications)))

    @endpoint
    async def deploy(self, application: str) -> None:
        """Serve a known application (again). KeyError for an unknown one."""
        self._handle(Deploy(application))

    @endpoint
    async def undeploy(self, application: str) -> None:
        """Withdraw an application and unload the blocks that no other needs; answers when they are unloaded."""
        tasks = self._handle(Undeploy(application))
        await asyncio.gather(*tasks)

    @endpoint
    async def unfit(self, worker: str, incarnation: int, why: str) -> None:
        """A worker cannot start; it waits for its end."""
        self._handle(Unfit(worker, incarnation, why))

    @endpoint(urgent=True)
    async def worker_starting(self, worker: str, incarnation: int, pid: int) -> None:
        self._handle(WorkerStarting(worker, incarnation, pid))

    @endpoint(urgent=True)
    async def worker_up(self, worker: str, incarnation: int) -> None:
        for gateway in self._gateways:  # before any route that passes there
            self.node.ref(gateway).up.cast(worker, incarnation)
        self._handle(WorkerUp(worker, incarnation))

    @endpoint(urgent=True)
    async def worker_down(self, worker: str, incarnation: int, cause: str) -> None:
        for gateway in self._gateways:
            self.node.ref(gateway).down.cast(worker, incarnation, cause)
        self._handle(WorkerDown(worker, incarnation, cause))

    @endpoint(urgent=True)
    async def gateway_up(self, gateway: str) -> None:
        """A gateway on another node begins: tell it what there is. It hears of every change from here on."""
        ref = self.node.ref(gateway)
        for name, worker in self._state.workers.items():
            if worker.alive:
                ref.up.cast(name, worker.incarnation)
        if self._state.published is not None:
            ref.routes.cast(self._state.published)
        self._history.note(self.node.clock.now(), "gateway", gateway, f"a further process answers HTTP: {gateway}")
        self._gateways.append(gateway)

    @endpoint(urgent=True)
    async def gateway_down(self, gateway: str) -> None:
        """It ended; its requests ended with it."""
        if gateway in self._gateways:
            self._gateways.remove(gateway)
            self._history.note(self.node.clock.now(), "gateway", gateway, f"a process that answered HTTP ended: {gateway}")

    @endpoint(concurrent=True)
    async def cluster(self) -> dict[str, Any]:
        """The body of ``/admin/cluster``."""
        names = [name for name, worker in self._state.workers.items() if worker.alive]
        answers = await asyncio.gather(*[self._status(name, VIEW_TIMEOUT) for name in names], return_exceptions=True)
        statuses = {name: a for name, a in zip(names, answers, strict=True) if isinstance(a, WorkerStatus)}
        return cluster_view(self._state, statuses, self._history.view(self.node.clock.now(), time.time()))

    # the shell

    def _handle(self, event: Event) -> list[asyncio.Task[None]]:
        """Apply an event; the tasks that perform what follows from it."""
        effects = self._state.handle(event, self.node.clock.now())
        if isinstance(event, Beat) and not effects:
            return []
        self._history.look(self._state, self.node.clock.now())
        tasks = [task for effect in effects if (task := self._perform(effect)) is not None]
        self._tell()
        return tasks

    def _tell(self) -> None:
        state = self._state
        progress = Progress(
            all(worker.alive for worker in state.workers.values()),
            bool(state.blocks) and all(state.ready(name) for name in state.blocks),
            state.whole,
            state.version,
            tuple(self._warnings),
            self._fatal,
        )
        self._progress.publish(progress)

    def _perform(self, effect: Effect) -> asyncio.Task[None] | None:
        match effect:
            case Kill(worker, cause):
                self._kill(worker, cause)
            case Load():
                return self._spawn(self._load(effect))
            case AskRoom(worker, incarnation):
                return self._spawn(self._ask_room(worker, incarnation))
            case Publish(update, first):
                return self._spawn(self._publish(update, first))
            case Unload():
                return self._spawn(self._unload(effect))
            case Fatal(message):
                log.info("%s", message)  # whoever started the cluster says it aloud
                self._fatal = self._fatal or message
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the controller failed", exc_info=error)

    def _tick(self) -> None:
        self._timer = self.node.clock.call_at(self.node.clock.now() + TICK, self._tick)  # first: a fault must not end it
        for name, peer in self.node.peers().items():
            at = peer.heartbeat_at
            if at is not None and self._heard.get(name) != at and name in self._state.workers:
                self._heard[name] = at
                payload = peer.payload
                age, waiting, running = (payload.get(key, 0) for key in ("sweep_age", "waiting", "running"))
                self._handle(Beat(name, peer.incarnation, age, waiting, running))

    def _worker(self, name: str, incarnation: int) -> Ref:
        return self.node.ref(f"{name}/worker#{incarnation}")

    def _kill(self, worker: str, cause: str) -> None:
        """Nobody waits for it: the worker's end is news like any other."""
        log.warning("worker %s is killed: %s", worker, cause)
        self.node.ref(f"{self.node.name}/{worker}", Process).kill.cast(cause)

    async def _load(self, effect: Load) -> None:
        worker, incarnation, load = effect.worker, effect.incarnation, effect.load
        async with self._order[worker]:
            try:
                await self._worker(worker, incarnation).load(load, timeout=LOAD_TIMEOUT, returns=BlockLoaded)
            except NodeDown:
                return  # told by the membership
            except RemoteError as error:
                self._handle(LoadFailed(worker, incarnation, load, error.text))
            except RuntimeFault as error:
                self._kill(worker, f"it did not load block {load.first}:{load.last} of {load.holder}: {error}")
            else:
                self._handle(Loaded(worker, incarnation, load))

    async def _unload(self, effect: Unload) -> None:
        async with self._publishing:  # publications before this one are out
            pass
        async with self._order[effect.worker]:
            try:
                await self._worker(effect.worker, effect.incarnation).unload(effect.holder, list(effect.ids))
            except NodeDown:
                return
            except RuntimeFault as error:
                log.warning("worker %s did not unload %s: %s", effect.worker, effect.holder, error)

    async def _ask_room(self, worker: str, incarnation: int) -> None:
        async with self._order[worker]:
            try:
                status = await self._status(worker, ANSWER_TIMEOUT)
            except NodeDown:
                return
            except RuntimeFault as error:
                self._kill(worker, f"it did not tell its status: {error}")
            else:
                if status.slow and status.slow not in self._warnings:  # all workers of one machine say the same
                    self._warnings.append(status.slow)
                self._handle(Room(worker, incarnation, status.budget - status.parameters))

    async def _status(self, worker: str, seconds: float) -> WorkerStatus:
        return await self.node.ref(f"{worker}/worker").status(timeout=seconds, returns=WorkerStatus)

    async def _publish(self, update: RoutesUpdate, first: tuple[str, ...]) -> None:
        async with self._publishing:
            alive = [name for name, worker in self._state.workers.items() if worker.alive]
            if first:
                told = [self.node.ref(f"{name}/worker").routes(update, timeout=ANSWER_TIMEOUT) for name in first]
                for name, answer in zip(first, await asyncio.gather(*told, return_exceptions=True), strict=True):
                    if isinstance(answer, Exception):
                        log.warning("worker %s did not take routes %d: %s", name, update.version, answer)
            for gateway in self._gateways:
                self.node.ref(gateway).routes.cast(update)
            for name in alive:
                if name not in first:
                    self.node.ref(f"{name}/worker").routes.cast(update)
