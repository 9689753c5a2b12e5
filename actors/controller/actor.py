"""The controller actor: performs what its state machine decides, over the cluster's membership and the workers' endpoints.

Owns the tasks that wait for launches, loads and publications; decides nothing itself. Publications leave one after the
other, in order of their versions, and those that had to wait leave as one; what is asked of one worker is asked in order.
At rest no timer runs, and a heartbeat costs work for its worker alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from blockwright.actors.conditions import Conditions
from blockwright.actors.controller.history import History
from blockwright.actors.controller.messages import (
    AskRoom,
    Beat,
    Deploy,
    Effect,
    Event,
    Fatal,
    Kill,
    Launch,
    LaunchFailed,
    Load,
    Loaded,
    LoadFailed,
    Publish,
    Room,
    Serve,
    Start,
    Tick,
    Undeploy,
    Unfit,
    Unload,
    WorkerDown,
    WorkerUp,
)
from blockwright.actors.controller.state import ControllerState
from blockwright.actors.controller.view import cluster_view
from blockwright.actors.worker.messages import BlockLoaded, WorkerStatus
from blockwright.runtime.actor.actor import Actor, PeerInfo
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.actor.ref import Ref
from blockwright.runtime.base.clock import Timer
from blockwright.runtime.base.errors import NodeDown, RemoteError, RuntimeFault

log = logging.getLogger("blockwright.controller")
LOAD_TIMEOUT = 600.0  # of one block
ANSWER_TIMEOUT = 5.0  # of a worker that only has to look something up
VIEW_TIMEOUT = 1.0  # of a worker's status when somebody looks at the cluster


class Launching(Protocol):
    """What the controller asks of the cluster's membership."""

    async def launch(self, worker: str) -> None:
        """Start a process for the worker; raises when that fails before it has joined."""

    async def kill(self, worker: str, cause: str) -> None: ...

    def pid(self, worker: str) -> int:
        """0 when there is no process."""


class Controller(Actor):
    """See the module. ``gateways``: addresses that get every publication; those on other nodes also hear of workers here."""

    def __init__(self, state: ControllerState, hub: Launching, gateways: list[str]) -> None:
        self.state, self.hub, self.gateways = state, hub, gateways
        self.warnings: list[str] = []  # what whoever started the cluster should hear, though it serves
        self._remote: list[str] = []  # addresses of gateways on other nodes; in ``gateways`` too
        self.fatal: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why the cluster cannot serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = {name: asyncio.Lock() for name in state.workers}  # what is asked of one worker
        self._publishing = asyncio.Lock()
        self._sent = 0  # version that was published last
        self._behind: dict[str, tuple[int, int]] = {}  # node -> its life and the version that its last heartbeat lacked
        self._first: dict[str, None] = {}  # workers that must know the next publication before gateways do
        self._launches = dict.fromkeys(state.workers, 0)
        self.history = History()
        self._conditions = Conditions()
        self._timer: Timer | None = None
        self._due: float | None = None  # when the timer fires

    async def on_start(self) -> None:
        self._deafen = self.node.on_heartbeat(self._beat)

    async def on_stop(self) -> None:
        self._deafen()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # messages

    @endpoint
    async def deploy(self, application: str) -> None:
        """Serve a known application (again). KeyError for an unknown one."""
        self.handle(Deploy(application))

    @endpoint
    async def undeploy(self, application: str) -> None:
        """Withdraw an application and unload the blocks that no other needs; answers when they are unloaded."""
        tasks = self.handle(Undeploy(application))
        await asyncio.gather(*tasks)

    @endpoint
    async def unfit(self, worker: str, incarnation: int, why: str) -> None:
        """A worker cannot start; it waits for its end."""
        self.handle(Unfit(worker, incarnation, why))

    @endpoint(concurrent=True)
    async def cluster(self) -> dict[str, Any]:
        """The body of ``/admin/cluster``."""
        names = [name for name, worker in self.state.workers.items() if worker.alive]
        answers = await asyncio.gather(*[self._status(name, VIEW_TIMEOUT) for name in names], return_exceptions=True)
        statuses = {name: a for name, a in zip(names, answers, strict=True) if isinstance(a, WorkerStatus)}
        pids = {name: self.hub.pid(name) for name in self.state.workers}
        return cluster_view(self.state, statuses, pids, self.history.view(self.node.clock.now(), time.time()))

    def start(self) -> None:
        """Launch the workers."""
        self.handle(Start())

    def serve(self, event: Serve) -> None:
        """The applications are hashed: load them."""
        self.handle(event)

    def worker_up(self, worker: str, incarnation: int) -> None:
        for gateway in self._remote:  # before any route that passes there
            self.node.ref(gateway).up.cast(worker, incarnation)
        self.handle(WorkerUp(worker, incarnation))

    def worker_down(self, worker: str, incarnation: int, cause: str) -> None:
        for gateway in self._remote:
            self.node.ref(gateway).down.cast(worker, incarnation, cause)
        self.handle(WorkerDown(worker, incarnation, cause))

    def gateway_up(self, address: str) -> None:
        """A gateway on another node begins: tell it what there is. It hears of every change from here on."""
        ref = self.node.ref(address)
        for name, worker in self.state.workers.items():
            if worker.alive:
                ref.up.cast(name, worker.incarnation)
        if self.state.version:
            ref.routes.cast(self.state.publication())
        self.history.note(self.node.clock.now(), "gateway", address, f"a further process answers HTTP: {address}")
        self._remote.append(address)
        self.gateways.append(address)

    def gateway_down(self, address: str) -> None:
        """It ended; its requests ended with it."""
        if address in self._remote:
            self.history.note(self.node.clock.now(), "gateway", address, f"a process that answered HTTP ended: {address}")
        for known in (self._remote, self.gateways):
            if address in known:
                known.remove(address)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition on the state holds."""
        await self._conditions.until(condition)

    # the shell

    def handle(self, event: Event) -> list[asyncio.Task[None]]:
        """Apply an event; the tasks that perform what follows from it."""
        now = self.node.clock.now()
        effects = self.state.handle(event, now)
        tasks = [task for effect in effects if (task := self._perform(effect)) is not None]
        if self.state.touched or effects:
            self.history.look(self.state, now)
            self._conditions.look()
            self._set_timer()
        return tasks

    def _perform(self, effect: Effect) -> asyncio.Task[None] | None:
        match effect:
            case Launch(worker):
                return self._spawn(self._launch(worker))
            case Kill(worker, cause):
                self._kill(worker, cause)
            case Load():
                return self._spawn(self._load(effect))
            case AskRoom(worker, incarnation):
                return self._spawn(self._ask_room(worker, incarnation))
            case Publish(_, first):
                self._first.update(dict.fromkeys(first))
                return self._spawn(self._publish())
            case Unload():
                return self._spawn(self._unload(effect))
            case Fatal(message):
                log.info("%s", message)  # whoever started the cluster says it aloud
                if not self.fatal.done():
                    self.fatal.set_result(message)
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

    def _beat(self, peer: PeerInfo) -> None:
        name = peer.id.name
        if name in self.state.workers:
            age, waiting, running = (peer.payload.get(key, 0) for key in ("sweep_age", "waiting", "running"))
            self.handle(Beat(name, peer.id.incarnation, age, waiting, running))
        self._retell(peer)

    def _retell(self, peer: PeerInfo) -> None:
        """Two heartbeats in a row that know older routes than were published: a publication was lost on its way there."""
        name, taken = peer.id.name, peer.payload.get("routes", self._sent)
        known = self._behind.pop(name, None)
        if taken == self._sent or self._sent != self.state.version or self._publishing.locked():
            return
        if known != (peer.id.incarnation, self._sent):
            self._behind[name] = peer.id.incarnation, self._sent
        else:
            actor = "worker" if name in self.state.workers else "gateway"
            self.node.ref(f"{name}/{actor}#{peer.id.incarnation}").routes.cast(self.state.publication())

    def _set_timer(self) -> None:
        due = self.state.next_tick()
        if due != self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due, self._timer = due, None if due is None else self.node.clock.call_at(due, self._tick)

    def _tick(self) -> None:
        self._due = self._timer = None
        try:
            self.handle(Tick())
        finally:
            self._set_timer()  # also where the clock was early, and after a fault

    def _worker(self, name: str, incarnation: int) -> Ref:
        return self.node.ref(f"{name}/worker#{incarnation}")

    def _kill(self, worker: str, cause: str) -> None:
        """Nobody waits for it: the worker's end is news like any other."""
        log.warning("worker %s is killed: %s", worker, cause)
        self._spawn(self.hub.kill(worker, cause))

    async def _launch(self, worker: str) -> None:
        self._launches[worker] += 1
        number = self._launches[worker]
        try:
            await self.hub.launch(worker)
        except Exception as error:  # whatever the launcher raises: the worker is not there
            if self._launches[worker] == number:
                log.warning("worker %s could not be launched: %s", worker, error)
                self.handle(LaunchFailed(worker, str(error)))

    async def _load(self, effect: Load) -> None:
        worker, incarnation, load = effect.worker, effect.incarnation, effect.load
        async with self._order[worker]:
            try:
                await self._worker(worker, incarnation).load(load, timeout=LOAD_TIMEOUT, returns=BlockLoaded)
            except NodeDown:
                return  # told by the membership
            except RemoteError as error:
                self.handle(LoadFailed(worker, incarnation, load, error.text))
            except RuntimeFault as error:
                self._kill(worker, f"it did not load block {load.first}:{load.last} of {load.holder}: {error}")
            else:
                self.handle(Loaded(worker, incarnation, load))

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
                if status.slow and status.slow not in self.warnings:  # all workers of one machine say the same
                    self.warnings.append(status.slow)
                self.handle(Room(worker, incarnation, status.budget - status.parameters))

    async def _status(self, worker: str, seconds: float) -> WorkerStatus:
        return await self.node.ref(f"{worker}/worker").status(timeout=seconds, returns=WorkerStatus)

    async def _publish(self) -> None:
        async with self._publishing:
            if self._sent == self.state.version:
                return  # told with the one before
            update, self._sent = self.state.publication(), self.state.version
            # By incarnation: a later life has nothing loaded of what these routes name.
            alive = {name: worker.incarnation for name, worker in self.state.workers.items() if worker.alive}
            first, others = ([name for name in alive if (name in self._first) is early] for early in (True, False))
            self._first = {}
            told = [self._worker(name, alive[name]).routes(update, timeout=ANSWER_TIMEOUT) for name in first]
            for name, answer in zip(first, await asyncio.gather(*told, return_exceptions=True), strict=True):
                if isinstance(answer, Exception):
                    log.warning("worker %s did not take routes %d: %s", name, update.version, answer)
            for gateway in self.gateways:
                self.node.ref(gateway).routes.cast(update)
            for name in others:
                self._worker(name, alive[name]).routes.cast(update)
