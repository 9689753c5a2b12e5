"""The worker: the shell around one sweep state machine and one device thread.

Turns messages into events, effects into messages, and keeps the device thread's next plan ready. Two plans are open at most:
the one that runs and the next, made before the tokens of the first are known. Decides nothing about sequences or memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path

from ...gpu.backend import Backend
from ...gpu.executor import Executor
from ...gpu.select import slow
from ...policies.overload.pool_reading import PoolReading, pool_reading
from ...policies.sweep.config import OPEN_PLANS
from ...policies.sweep.events import (
    Cancelled,
    ComponentGone,
    ComponentsPlaced,
    ComponentsRefused,
    Effect,
    Event,
    Flight,
    PeerLost,
    RoutesChanged,
    Started,
)
from ...policies.sweep.local_routes import merged
from ...policies.sweep.page_events import Export, HoldPages, MoveSlots, SendPages, Unhold
from ...policies.sweep.state import SweepState
from ...runtime import Actor, Down, endpoint
from ...runtime.base.codec import unpack
from ...runtime.base.decoding import decode
from ...transport.link import Traffic
from .block_endings import BlockEndings
from .block_loader import BlockLoader
from .component_loader import ComponentLoader, ReadSpecs, read_specs
from .composed_runs import ComposedRuns
from .device_thread import Device, OpenDevice, Swept, start_device
from .event_feed import Aside, EventFeed
from .event_log_writer import EventLogWriter
from .event_recorder import EventRecorder, Machine
from .messages import (
    BlockLoaded,
    LoadBlock,
    NoCapacity,
    ParametersWanted,
    PeerReport,
    Submission,
    SweepReport,
    WorkerConfig,
    WorkerStatus,
    sweep_config,
)
from .offline_credit import OfflineCredit
from .outbox import Outbox
from .pages import PageCarrier
from .parameters import ParameterCarrier
from .peers import Answer, Peers
from .reports import Reports, by_worker
from .status import status_of
from .sweep_figures import SweepFigures

IDLE_CHECK = 0.5  # seconds of quiet before the memory invariant is verified
CHECK_EVERY = 7  # sweeps, where it is verified besides: what is broken stays so, and looking is a third of a tiny sweep


class Worker(Actor):
    """See the module. ``on_fatal`` is called when the device thread has failed: the process must end. The simulated cluster
    gives ``open_device`` and ``read_specs``: a device in virtual time, components without files."""

    def __init__(
        self,
        config: WorkerConfig,
        backend: Backend,
        on_fatal: Callable[[BaseException], None],
        *,
        open_device: OpenDevice = start_device,
        read_specs: ReadSpecs = read_specs,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        self.config, self.backend = config, backend
        self._end, self._open_device, self._read_specs, self._aside = on_fatal, open_device, read_specs, aside
        self.state = SweepState(sweep_config(config, backend.numerics, backend.slot_unit))
        self._slow = slow(config.backend, backend, config.dtype, config.threads)
        self._machine: Machine = self.state  # what events, plans and commits go through; ``state`` is for reading
        self._recorder: EventRecorder | None = None
        self._composed = ComposedRuns(self._do)
        self._watched: dict[str, int] = {}  # other workers and gateways' nodes -> incarnation that is monitored
        self._flights = 0
        self._queues = False  # somebody was here at the last heartbeat
        self._ending = BlockEndings(self.state)
        self._published = RoutesChanged(0, [], [], [])  # what was taken, as a whole
        self._pumping = False
        self._idle_check: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None  # for a sequence that expires while nothing else happens
        self._figures = SweepFigures(self.state.config.costs)
        self._credit = OfflineCredit(self.state)
        self._reported: list[Effect] = []  # performed, and gateways were not told yet

    async def on_start(self) -> None:
        config, chunk = self.config, self.state.config.memory_chunk
        if config.event_log:
            writer = EventLogWriter(Path(config.event_log), config.name, self.node.incarnation, config.event_log_size)
            self._machine = self._recorder = EventRecorder(self.state, writer)
        self._feed = EventFeed(self.state, self._machine, self._pass_by, lambda: self._figures.costs, self._aside)
        self._outbox = Outbox(self.node)
        swept = partial(self._guarded, self._swept)
        self.device: Device = self._open_device(config, self.backend, chunk, swept, self._on_fatal, self._outbox.lay_out)
        self._pages = PageCarrier(self.device, self._outbox, self._apply, self._do, self._on_fatal, self._watch)
        self._parameters = ParameterCarrier(self.node, self.device, self._outbox, self._watch, config.memory)
        self._loader = ComponentLoader(self.device, self.backend, self._apply, self._parameters)
        rehearse = partial(self._composed.rehearse, self.device)
        self._block_loader = BlockLoader(config, self.backend, self._loader, rehearse, self._read_specs)
        self._loop = asyncio.get_running_loop()
        self._reports = Reports(config.name, self.node.incarnation)
        self._peers = Peers(f"{config.name}/worker")
        self._apply(Started(self.node.incarnation))
        self.node.on_link(Traffic.ACTIVATION, self._flight)
        self.node.on_link(Traffic.KV, self._pages.arrived)
        self.node.on_link(Traffic.PARAMETERS, self._parameters.arrived)
        self.node.heartbeat = self._heartbeat

    async def on_stop(self) -> None:
        for timer in (self._idle_check, self._expiry):
            if timer is not None:
                timer.cancel()
        self._loader.stop()
        self.device.stop()
        if self._recorder is not None:
            self._recorder.close()

    def _on_fatal(self, error: BaseException) -> None:
        """The device thread or the state machine has failed: the process ends here."""
        if self._recorder is not None:
            self._recorder.break_off()
        self._end(error)

    def _heartbeat(self) -> dict[str, object]:
        """Ours goes out: time also to look at those of others."""
        for worker, answer in self._peers.heartbeats(self.node.peers()):
            self._answer(worker, answer)
        queues = self.state.queues()
        if queues or self._queues:
            self.node.ref(f"{self.config.name}/blocks").report.cast(queues)
        self._queues = bool(queues)
        return {
            "sweep_age": self.device.lateness(),
            "waiting": self.state.awaiting,
            "running": self.state.running,
            "reports": self._reports.last,
            "routes": self._published.version,
            **self._credit.beat(self._figures.learned),
        }

    def _pass_by(self, machine: Machine) -> None:
        """What stands before the state machine from now on."""
        self._machine = machine

    def _apply(self, event: Event) -> None:
        """Something has happened: the machine takes note now, and plans soon."""
        self._machine.apply(event, self._loop.time())
        self._wake()

    # requests --------------------------------------------------------------------------------------------------------

    @endpoint
    async def submit(self, submission: Submission) -> None:
        self._watch(submission.gateway.partition("/")[0])
        self._apply(submission)

    @endpoint(urgent=True)
    async def cancel(self, requests: list[str]) -> None:
        for request in requests:
            self._apply(Cancelled(request))

    @endpoint
    async def export(self, wanted: Export) -> None:
        """Send pages of a sequence to other workers; what came of it is news for the gateway."""
        self._watch(wanted.gateway.partition("/")[0])
        self._apply(wanted)

    @endpoint
    async def hold(self, wanted: HoldPages) -> bool:
        """A sequence ends here, and its pages stay for its next attempt; whether those that are to come have room."""
        self._watch(wanted.gateway.partition("/")[0])
        self._apply(wanted)
        return self.state.room(wanted.request)

    @endpoint
    async def unhold(self, unhold: Unhold) -> None:
        self._apply(unhold)

    @endpoint
    async def ack(self, listener: str, serial: int) -> None:
        self._reports.acknowledge(listener, serial)
        self._report()

    @endpoint
    async def replay(self, listener: str, serial: int) -> None:
        for report in self._reports.since(listener, serial):
            self._tell(listener, report)
        self._report()

    def _tell(self, listener: str, report: SweepReport | PeerReport) -> None:
        ref = self.node.ref(listener)
        (ref.tokens if isinstance(report, SweepReport) else ref.peer).cast(report)

    # other workers ---------------------------------------------------------------------------------------------------

    @endpoint
    async def peer(self, report: PeerReport) -> None:
        """What another worker has to say, in its order."""
        self._watch(report.worker)
        taken, answer = self._peers.accept(report)
        if answer is not None:
            self._answer(report.worker, answer)
        for message in report.messages if taken else ():
            self._apply(message)

    def _answer(self, worker: str, answer: Answer) -> None:
        getattr(self.node.ref(f"{worker}/worker"), answer[0]).cast(f"{self.config.name}/worker", answer[1])

    def _flight(self, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        """Hidden states have come: the device keeps them until a plan takes them, or tells it to forget them."""
        flight: Flight = decode(Flight, unpack(header))
        self._flights += 1
        local = Flight(flight.home, self._flights, flight.width, flight.rows)
        self._do(lambda ex: ex.put_flight(local.number, buffers[0], sum(row.count for row in local.rows), local.width))
        self._apply(local)

    def _watch(self, node: str) -> None:
        """Hear of the end of a node's current life, once."""
        incarnation = self.node.current_incarnation(node)
        if node != self.node.name and incarnation and self._watched.get(node) != incarnation:
            self._watched[node] = incarnation
            self.node.monitor(node, self._lost)

    def _lost(self, down: Down) -> None:
        self._apply(PeerLost(down.node))
        self._reports.forget(down.node)
        self._peers.forget(down.node)
        self._parameters.lost(down.node)

    # blocks and routes -----------------------------------------------------------------------------------------------

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock) -> BlockLoaded | NoCapacity:
        """Make components resident between sweeps; on failure, or without room, none of them."""
        return await self._block_loader.load(block, self.state.parts.memory)

    @endpoint
    async def unload(self, holder: str, ids: list[bytes], block: str = "") -> int:
        """``holder`` needs these components no more; bytes of the pool that become free. ``block``: an actor here that wants
        to know when the last plan that names them has ended, or "".

        In line with the other messages: the routes that named the components are withdrawn by one that came before.
        """
        before = self.state.parts.memory.free_bytes
        self._loader.release(holder, ids)
        if block:
            self._ending.await_plans(self.node.ref(f"{self.config.name}/{block}"))
        return self.state.parts.memory.free_bytes - before

    @endpoint
    async def parameters(self, wanted: ParametersWanted) -> None:
        """Send packed tensors to another worker, those of them that are here."""
        self._parameters.send(wanted)

    @endpoint(urgent=True)
    async def routes(self, update: RoutesChanged) -> None:
        known, self._published = self._published, merged(self._published, update)
        if (update := self._published) is known:
            return
        self._composed.prepare(update.chains)
        for worker in sorted({hop.worker for route in update.planned for hop in route.hops}):
            self._watch(worker)
        self._perform()  # what was unloaded before must be forgotten before runs are composed anew
        self._apply(update)
        routes = self.state.parts.routes
        self._composed.retain(routes.runs, {local.delta for local in routes.planned()})
        for local in routes.all_in_force():
            for run in local.runs:
                self._composed.compose(routes.number(run), run)
                self._composed.attach(routes.number(run), run, local)

    def _do(self, operation: Callable[[Executor], object]) -> None:
        """An operation that must succeed: its failure ends the worker."""

        def settled(future: asyncio.Future[object]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                self._on_fatal(error)

        self.device.call(operation).add_done_callback(settled)

    # sweeps ----------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan soon, once for all that happens in this turn of the loop."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._guarded, self._pump)

    def _guarded(self, turn: Callable[..., None], *args: object) -> None:
        """A fault of the state machine must not leave a worker that looks alive and does nothing."""
        try:
            turn(*args)
        except Exception as error:
            self._on_fatal(error)

    def _pump(self, swept: float = 0.0) -> None:
        """Perform effects, then plan, then perform those of the plan: in this order the device learns of them. ``swept``:
        seconds that the sweep took of which there is to report."""
        self._pumping = False
        state = self.state
        self._perform()
        while state.open_plans < OPEN_PLANS:
            began = time.perf_counter()
            plan = self._machine.plan(self._loop.time())
            self._figures.planned(time.perf_counter() - began)
            if plan is None:
                break
            self.device.sweep(plan)
            self._perform()
        self._perform()
        self._report(swept)
        if self._idle_check is not None:
            self._idle_check.cancel()
        self._idle_check = None if state.open_plans else self._loop.call_later(IDLE_CHECK, self._guarded, state.check)
        self._await_deadline()

    def _await_deadline(self) -> None:
        """Plan when the next sequence expires, should nothing happen before."""
        if self._expiry is not None:
            self._expiry.cancel()
        due = self.state.next_deadline
        self._expiry = None
        if due < float("inf"):
            self._expiry = self._loop.call_later(max(0.0, due - self._loop.time()), self._wake)

    def _swept(self, swept: Swept) -> None:
        """A plan has run: take note, pass hidden states on, tell gateways, plan the next."""
        self._machine.commit(swept.plan, swept.result, self._loop.time())
        self._ending.tell()
        for event in self._figures.swept(swept.plan, swept.result, self.state):
            self._machine.apply(event, self._loop.time())
        if self.config.check and swept.plan.number % CHECK_EVERY == 0:
            self.state.check()
        self._outbox.depart(swept)
        self._pump(swept.result.seconds)

    def _perform(self) -> None:
        """Perform effects. What is meant for a worker that is not there (yet) ends as if it had been lost."""
        while effects := self.state.take_effects():
            self._reported += effects
            for effect in effects:
                if isinstance(effect, ComponentGone):
                    self._loader.forget(effect.component)
                    self._composed.forget(effect.component, effect.tensors)
                elif isinstance(effect, ComponentsPlaced):
                    self._loader.placed(effect)
                elif isinstance(effect, ComponentsRefused):
                    self._loader.refused(effect)
                elif isinstance(effect, SendPages | MoveSlots):
                    self._pages.perform(effect)
            for worker, messages in by_worker(effects):
                if self.node.current_incarnation(worker):
                    self._watch(worker)
                    self._tell(address := f"{worker}/worker", self._reports.for_worker(address, messages))
                else:
                    self._apply(PeerLost(worker))

    def _report(self, seconds: float = 0.0) -> None:
        """Tell gateways what this turn has brought, one message each."""
        reported, self._reported = self._reported, []
        for gateway, report in self._reports.make(reported, self.state.number, self._credit.tell, seconds):
            self.node.ref(gateway).tokens.cast(report)

    @endpoint
    async def feed(self) -> AsyncIterator[bytes]:
        """All that the machine is told and plans from now on, behind a snapshot: see ``event_feed``."""
        async with aclosing(self._feed.follow()) as batches:
            async for batch in batches:
                yield batch

    # views -----------------------------------------------------------------------------------------------------------

    @endpoint(urgent=True)
    async def pool(self) -> PoolReading:
        return pool_reading(self.state)

    @endpoint(urgent=True)
    async def status(self) -> WorkerStatus:
        late, figures = self.device.lateness(), self._figures.counters() | self._parameters.counters()
        return status_of(self.config, self.state, self.node.incarnation, self.backend.numerics, late, figures, self._slow)
