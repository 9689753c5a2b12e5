"""Worker actor: the shell around one sweep state machine and one device thread.

Turns messages into events and effects into messages, and keeps the device thread's next plan ready. At most two plans are
open: the one that runs, and the next one, made before the tokens of the first are known. Decides nothing about sequences or
memory. Open this file to see how the parts of a worker are wired, and which messages it accepts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...gpu.backend import Backend
from ...gpu.executor import Executor
from ...gpu.model.config import ComponentSpec
from ...gpu.select import slow
from ...policies.cluster.isolation import Isolation, nodes_with_sequences
from ...policies.control.loads import LoadBlock, NoCapacity, SourcesWanted
from ...policies.memory.cache_news import CacheReport, MarkPages
from ...policies.memory.prefix_index import Key
from ...policies.overload.pool_reading import PoolReading, pool_reading
from ...policies.requests.absent import page_keys
from ...policies.requests.book.sweep_report import SweepReport
from ...policies.requests.remembered import AnswerKey
from ...policies.requests.routes_changed import RoutePieces, RoutesChanged
from ...policies.sweep.config import OPEN_PLANS
from ...policies.sweep.events import (
    Cancelled,
    ComponentGone,
    ComponentsPlaced,
    ComponentsRefused,
    Event,
    Flight,
    GatewayNews,
    GrammarUnused,
    GrammarWanted,
    PeerLost,
    Started,
)
from ...policies.sweep.local_routes import merged
from ...policies.sweep.page_events import Export, HoldPages, Unhold
from ...policies.sweep.state import SweepState
from ...runtime import Actor, Down, endpoint
from ...runtime.base.codec import unpack
from ...runtime.base.decoding import decode
from ...transport.link import Traffic
from ..device_choice import this_machine
from .block_loader import BlockEndings, BlockLoader, KnownSpecs
from .component_loader import ComponentLoader, ReadSpecs
from .component_sources import ComponentSources
from .composed_runs import ComposedRuns
from .cut_answers import CutAnswers
from .device_thread import DeviceThread, ExecutedPlan, OpenDevice, start_device
from .event_feed import Aside, EventFeed
from .event_log_writer import EventLogWriter
from .event_recorder import EventRecorder, Machine
from .former_life import WORKER as FORMER
from .former_life import FormerLife
from .grammar_compiler import GrammarCompiler
from .messages import (
    BlockLoaded,
    ParametersWanted,
    PeerReport,
    RawWanted,
    Submission,
    WorkerConfig,
    WorkerStatus,
    sweep_config,
)
from .model_folders import ModelFolders
from .outbox import Outbox
from .pages import PageCarrier
from .parameters import ParameterCarrier
from .proofs import Proofs
from .raw_tensors import RawTensors
from .reports import Answer, OfflineCredit, Peers, Reports
from .sweep_figures import SweepFigures, TrafficFigures, status_of

log = logging.getLogger("blockwright.worker")
IDLE_CHECK = 0.5  # seconds of quiet before the memory invariant is verified
# in sweeps; also verified this often: a broken invariant stays broken, and a check costs a third of a tiny sweep
CHECK_EVERY = 7


class Worker(Actor):
    """Worker actor (see the module).

    ``on_fatal`` is called when the device thread has failed; the process must end then. ``former``: the life before, whose
    memory goes on. The simulated cluster passes ``open_device`` (a device in virtual time) and ``read_specs`` (components
    without files).
    """

    def __init__(
        self,
        config: WorkerConfig,
        backend: Backend,
        on_fatal: Callable[[BaseException], None],
        former: FormerLife | None = None,
        *,
        open_device: OpenDevice = start_device,
        read_specs: ReadSpecs | None = None,
        aside: Aside = asyncio.to_thread,
    ) -> None:
        self.config, self.backend = config, backend
        self._end = on_fatal
        self._open_device = open_device
        folders = ModelFolders(config.sources.folders, with_head=config.head in ("", this_machine()))
        self._read_specs = read_specs or folders.read
        self._aside = aside
        units = backend.slot_unit, backend.chunk, backend.alignment
        self._former = former
        self.state = SweepState(sweep_config(config, backend.numerics, *units)) if former is None else former.state
        self._slow = slow(config.worker.backend, backend, config.worker.dtype, config.worker.threads)
        self._machine: Machine = self.state  # receives events, plans and commits; ``state`` is only read
        self._recorder: EventRecorder | None = None
        self._composed = ComposedRuns(self._do) if former is None else former.composed
        self._specs = KnownSpecs() if former is None else former.specs
        self._watched: dict[str, int] = {}  # other workers and gateways' nodes -> incarnation that is monitored
        self._queues = False  # there were queues at the last heartbeat
        self._ending = BlockEndings(self.state)
        self._published = RoutesChanged(0, [], [], [])  # the routes accepted so far, complete
        self._pieces = RoutePieces()
        self._pumping = self._over = self._failed = False
        self._isolation = Isolation(config.silence, config.heartbeat)
        self._idle_check: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None  # plans when a sequence expires while nothing else happens
        self._figures = SweepFigures(self.state.config.costs)
        self._traffic = TrafficFigures(backend.numerics)
        self._credit = OfflineCredit(self.state)
        self._news: list[GatewayNews] = []  # not reported to gateways yet
        if config.worker_memory.marks_copies:
            self.state.note_cache()

    async def on_start(self) -> None:
        config, chunk = self.config, self.state.config.memory_chunk
        if config.logs.event_log:
            folder, size = Path(config.logs.event_log), config.logs.event_log_size
            writer = EventLogWriter(folder, config.name, self.node.incarnation, size)
            self._machine = self._recorder = EventRecorder(self.state, writer)
        self._feed = EventFeed(self.state, self._machine, self._pass_by, lambda: self._figures.costs, self._aside)
        self._outbox = Outbox(self.node)
        self._outbox.offer_device(config.worker.device)
        swept = partial(self._guarded, self._swept)
        self._flights = self.node.incarnation << 32  # the device knows none of this life
        former, on_device = self._former, (swept, self._on_fatal, self._outbox.lay_out)
        if former is None:
            self.device = self._open_device(config, self.backend, chunk, *on_device)
            self._grammars = GrammarCompiler(self.device, self._apply, config.tenants.tenant_weights)
            self._proofs = Proofs(config, self.backend, self.device, self.node.incarnation, self._apply)
        else:
            former.turn_to(self._do, self._apply, on_device)
            self.device = former.device
            self._grammars, self._proofs = former.grammars, former.proofs
        if isinstance(self.device, DeviceThread):
            self.device.on_guess = self._outbox.depart_one
        size = config.worker_memory.page_size
        self._pages = PageCarrier(
            self.device, self._outbox, self._apply, self._do, self._on_fatal, self._watch, size, self._flights
        )
        self._parameters = ParameterCarrier(self.node, self.device, self._outbox, self._watch, config.worker_memory.memory)
        raw = RawTensors(self.node, self._outbox, self._watch, config.worker_memory.memory)
        resident = self.state.parts.memory.residence.holds
        self._sources = ComponentSources.open(self.node, raw, resident, config.sources)
        claims = former.claims if former is not None else {}
        self._loader = ComponentLoader(self.device, self.backend, self._apply, self._parameters, self._sources, claims)
        self._cut = CutAnswers(
            self.state, config.resume_window, asyncio.get_running_loop().time, lambda: self._proofs.numerics
        )
        self._block_loader = BlockLoader(
            config, self.backend, self._loader, self._sources, self._rehearse, self._read_specs, self._specs
        )
        self._loop = asyncio.get_running_loop()
        self._reports = Reports(config.name, self.node.incarnation)
        self._peers = Peers(f"{config.name}/worker")
        self._apply(Started(self.node.incarnation))
        self.node.on_link(Traffic.ACTIVATION, self._flight)
        self.node.on_link(Traffic.KV, self._pages.arrived)
        self.node.on_link(Traffic.PARAMETERS, partial(raw.arrived, self._parameters.arrived))
        self.node.heartbeat = self._heartbeat

    async def on_stop(self) -> None:
        for timer in (self._idle_check, self._expiry):
            if timer is not None:
                timer.cancel()
        self._over = True
        self._loader.stop()
        self._sources.stop()
        legacy = self.node.legacy if self.node.life_over and not self._failed else None
        if legacy is not None and (former := await self._leave_behind()) is not None:
            legacy[FORMER] = former
        else:
            self._grammars.stop()
            self.device.stop()
        if self._recorder is not None:
            self._recorder.close()

    async def _leave_behind(self) -> FormerLife | None:
        """End all that belongs to this life; return what the next one takes over, if that is whole."""
        await self.device.call(lambda executor: None)  # open plans have ended when this has
        rows, now = self.state.parts.rows, self._loop.time()
        gateways = {rows.submission[s].gateway.partition("/")[0] for s in rows.live() if not rows.is_guest(s)}
        for node in sorted(gateways | {*self._watched}):
            self._machine.apply(PeerLost(node), now)
        self._machine.apply(RoutesChanged(self._published.version + 1, [], [], []), now)
        self._perform()
        self._composed.retain((), ())
        await self.device.call(lambda executor: None)
        if rows.live() or self._loader.loading or self.state.open_plans:
            log.warning("nothing is kept of this life: sequences or loads are left")
            return None
        self.state.check()
        parts = self.device, self._composed, self._grammars, self._proofs, self._specs
        return FormerLife(self.config, self.backend, self.state, *parts)

    def _on_fatal(self, error: BaseException) -> None:
        """End the process: the device thread or the state machine has failed."""
        self._failed = True
        if self._recorder is not None:
            self._recorder.break_off()
        self._end(error)

    def _heartbeat(self) -> dict[str, object]:
        """Return this worker's heartbeat payload. Also process the heartbeats that other workers have sent."""
        for worker, answer in self._peers.heartbeats(self.node.peers()):
            self._answer(worker, answer)
        self._outbox.retry()
        self._look_around()
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
            "speed": self.config.speed,
            "numerics": self._proofs.numerics,
            **self._credit.beat(self._figures.learned),
            **self._proofs.progress,
            **self._traffic.beat,
        }

    def _look_around(self) -> None:
        """Stop planning while no node that has sequences here is heard, and go on when one is."""
        rows, leases = self.state.parts.rows, self.state.parts.leases
        peers = self.node.peers()
        live = rows.live()
        own = [rows.submission[s].gateway for s in live if not rows.is_guest(s)]
        wanting = nodes_with_sequences(own, (leases.home(s) for s in live if rows.is_guest(s)))
        heard = {name: peers[name].heard for name in wanting if name in peers}
        before = self._isolation.isolated
        if self._isolation.look(heard, self._loop.time()):
            self._wake()
        if (alone := self._isolation.isolated) != before:
            log.warning("no node that sent requests is heard any more" if alone else "a node with requests is heard")

    def _pass_by(self, machine: Machine) -> None:
        """Route all further calls through ``machine``, which stands before the state machine."""
        self._machine = machine

    def _apply(self, event: Event) -> None:
        """Apply an event now, and plan soon."""
        self._machine.apply(event, self._loop.time())
        self._wake()

    # requests --------------------------------------------------------------------------------------------------------

    @endpoint
    async def submit(self, submission: Submission) -> None:
        self._watch(submission.gateway.partition("/")[0])
        self._apply(submission)
        self._send_back()

    @endpoint(urgent=True)
    async def cancel(self, requests: list[str]) -> None:
        self._cut.cancelled(requests)
        for request in requests:
            self._apply(Cancelled(request))

    @endpoint(concurrent=True)
    async def remembered(self, key: AnswerKey, request: str) -> list[int]:
        """Return the tokens of an answer that was cut off, or none (see ``cut_answers``)."""
        return await self._cut.find(key, request, asyncio.sleep)

    @endpoint
    async def export(self, wanted: Export) -> None:
        """Send pages of a sequence to other workers. The outcome is reported to the gateway as news."""
        self._watch(wanted.gateway.partition("/")[0])
        self._apply(wanted)

    @endpoint
    async def hold(self, wanted: HoldPages) -> bool:
        """End a sequence here, but keep its pages for its next attempt.

        Return whether there is capacity for the pages that are still to come.
        """
        self._watch(wanted.gateway.partition("/")[0])
        self._apply(wanted)
        return self.state.room(wanted.request)

    @endpoint
    async def unhold(self, unhold: Unhold) -> None:
        self._apply(unhold)

    @endpoint
    async def cached(self, after: int) -> CacheReport | None:
        """Return what has changed of cached pages since the report of that number; None: it is not noted."""
        return self.state.cache_report(after, self._loop.time())

    @endpoint
    async def mark(self, pages: MarkPages) -> list[Key]:
        """Mark redundant pages; return the ones left out: they were used since the last report, or are being sent."""
        self._apply(self.state.unused_since(pages))
        return self.state.unmarked(pages)

    @endpoint
    async def retire(self, route: str, hashes: list[bytes]) -> None:
        """Have cached pages of a route go before others, but for those in use or on their way."""
        if (local := self.state.parts.routes.known(route)) is not None:
            self._apply(MarkPages(page_keys(local, hashes)))

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
        """Apply another worker's messages, in the order in which they were sent."""
        self._watch(report.worker)
        taken, answer = self._peers.accept(report)
        if answer is not None:
            self._answer(report.worker, answer)
        for message in report.messages if taken else ():
            self._apply(message)
        self._send_back()

    def _send_back(self) -> None:
        """Send back what needs a worker from which this one is cut off."""
        for node in self.node.cut_off():
            self._apply(PeerLost(node))

    def _answer(self, worker: str, answer: Answer) -> None:
        ref = self.node.ref(f"{worker}/worker", Worker)
        (ref.replay if answer[0] == "replay" else ref.ack).cast(f"{self.config.name}/worker", answer[1])

    def _flight(self, sender: str, header: bytes, buffers: list[memoryview]) -> None:
        """Hand arriving hidden states to the device. It keeps them until a plan uses them or drops them."""
        flight: Flight = decode(Flight, unpack(header))
        self._flights += 1
        local = Flight(flight.home, self._flights, flight.width, flight.rows)
        self._do(lambda ex: ex.put_flight(local.number, buffers[0], sum(row.count for row in local.rows), local.width))
        self._apply(local)

    def _watch(self, node: str) -> None:
        """Monitor a node's current incarnation, once."""
        incarnation = self.node.current_incarnation(node)
        if not incarnation:
            self.node.seek(node)
        if node != self.node.name and incarnation and self._watched.get(node) != incarnation:
            self._watched[node] = incarnation
            self.node.monitor(node, self._lost)

    def _lost(self, down: Down) -> None:
        self._watched.pop(down.node, None)  # the same life may come again
        self._cut.lost(down.node)
        self._apply(PeerLost(down.node))
        self._reports.forget(down.node)
        self._peers.forget(down.node)
        self._parameters.lost(down.node)
        self._sources.raw.lost(down.node)

    # blocks and routes -----------------------------------------------------------------------------------------------

    @endpoint(concurrent=True)
    async def load(self, block: LoadBlock) -> BlockLoaded | NoCapacity | SourcesWanted:
        """Make components resident between sweeps: all of them, or none if loading fails or memory or files are short."""
        return await self._block_loader.load(block, self.state.parts.memory)

    async def _rehearse(self, block: LoadBlock, specs: Sequence[ComponentSpec]) -> None:
        await self._composed.rehearse(self.device, block, specs)
        await self._proofs.prove(block)

    @endpoint
    async def unload(self, holder: str, ids: list[bytes], block: str = "") -> int:
        """Release ``holder``'s claim on these components. Return the bytes of the pool that become free.

        ``block`` is an actor on this worker to notify when the last plan that names the components has ended, or "". The
        call stays in line with other messages, because an earlier message withdrew the routes that named the components.
        """
        before = self.state.parts.memory.free_bytes
        self._loader.release(holder, ids)
        if block:
            self._ending.await_plans(self.node.ref(f"{self.config.name}/{block}"))
        return self.state.parts.memory.free_bytes - before

    @endpoint
    async def parameters(self, wanted: ParametersWanted) -> None:
        """Send packed tensors to another worker, as far as they are resident here."""
        self._parameters.send(wanted)

    @endpoint
    async def raw(self, wanted: RawWanted) -> None:
        """Send a piece of a raw tensor to another worker, if its file is here."""
        self._sources.raw.send(wanted)

    @endpoint(concurrent=True)
    async def documents(self, ids: list[bytes]) -> list[bytes]:
        """Return the documents of components and deltas (``zoo/by_hash.py``), each empty if it is not known here."""
        return await self._sources.documents(ids)

    @endpoint(urgent=True)
    async def version(self) -> int:
        """Return the version of the last publication that this worker has taken."""
        return self._published.version

    @endpoint(urgent=True)
    async def routes(self, update: RoutesChanged) -> None:
        whole = self._pieces.take(update)
        known, self._published = self._published, merged(self._published, whole) if whole is not None else self._published
        if (update := self._published) is known:
            return
        self._composed.prepare(update.chains)
        workers = {hop.worker for route in update.planned for hop in route.hops}
        self._outbox.retain(workers)
        for worker in sorted(workers):
            self._watch(worker)
        self._perform()  # unloaded components must be forgotten before runs are composed anew
        self._apply(update)
        if not known.version:
            self.node.send_heartbeat()  # requests that have tokens wait for this worker's numerics
        routes = self.state.parts.routes
        self._composed.retain(routes.runs, {local.delta for local in routes.planned()})
        for local in routes.all_in_force():
            for run in local.every_run:
                self._composed.compose(routes.number(run), run)
                self._composed.attach(routes.number(run), run, local)

    def _do(self, operation: Callable[[Executor], object]) -> None:
        """Run an operation that must succeed on the device. A failure ends the worker."""

        def settled(future: asyncio.Future[object]) -> None:
            if not future.cancelled() and (error := future.exception()) is not None:
                self._on_fatal(error)

        self.device.call(operation).add_done_callback(settled)

    # sweeps ----------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Plan soon, once for everything that happens in this turn of the loop."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._guarded, self._pump)

    def _guarded(self, turn: Callable[..., None], *args: object) -> None:
        """Run ``turn``; end the worker if it fails.

        A fault of the state machine must not leave a worker that looks alive and does nothing.
        """
        try:
            turn(*args)
        except Exception as error:
            self._on_fatal(error)

    def _pump(self, swept: float = 0.0) -> None:
        """Perform effects, plan, and perform the plan's effects. The device learns of them in this order.

        ``swept`` is the duration in seconds of the sweep that is to be reported.
        """
        self._pumping = False
        state = self.state
        if self._over or self.node.life_over:
            return  # what is open ends, and nothing begins
        self._perform()
        while state.open_plans < OPEN_PLANS and not self._isolation.stops(self._loop.time()):
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
        """Arm a timer that plans when the next sequence expires, in case nothing happens before."""
        if self._expiry is not None:
            self._expiry.cancel()
        due = self.state.next_deadline
        self._expiry = None
        if due < float("inf"):
            self._expiry = self._loop.call_later(max(0.0, due - self._loop.time()), self._wake)

    def _swept(self, swept: ExecutedPlan) -> None:
        """Commit a plan that has run, forward hidden states, report to gateways, and plan the next sweep."""
        self._traffic.record(swept.plan, self.state.batch(swept.plan.number), self.state.parts.rows)
        self._machine.commit(swept.plan, swept.result, self._loop.time())
        self._ending.notify()
        for event in self._figures.swept(swept.plan, swept.result, self.state):
            self._machine.apply(event, self._loop.time())
        if self.config.check and swept.plan.number % CHECK_EVERY == 0:
            self.state.check()
        if not self._over:
            self._outbox.depart(swept)
        self._pump(swept.result.seconds)

    def _perform(self) -> None:
        """Perform effects. Messages for a worker that is not up (yet) are handled as if it had been lost."""
        while effects := self.state.take_effects():
            self._news += effects.news
            for order in effects.orders:
                if isinstance(order, ComponentGone):
                    self._loader.forget(order.component)
                    self._composed.forget(order.component, order.tensors)
                elif isinstance(order, ComponentsPlaced):
                    self._loader.placed(order)
                elif isinstance(order, ComponentsRefused):
                    self._loader.refused(order)
                elif isinstance(order, GrammarWanted):
                    self._grammars.compile(order.grammar, order.tenant)
                elif isinstance(order, GrammarUnused):
                    self._grammars.release(order.key)
                else:
                    self._pages.perform(order)
            for worker, messages in effects.messages.items() if not self._over else ():
                self._watch(worker)
                if self.node.current_incarnation(worker):
                    for report in self._reports.for_worker(address := f"{worker}/worker", messages):
                        self._tell(address, report)
                else:
                    self._apply(PeerLost(worker))

    def _report(self, seconds: float = 0.0) -> None:
        """Report to gateways the news of this turn, one message each."""
        news, self._news = self._news, []
        for gateway, report in self._reports.make(news, self.state.number, self._credit.changed_for, seconds):
            self.node.ref(gateway).tokens.cast(report)

    @endpoint
    async def feed(self) -> AsyncIterator[bytes]:
        """Stream a snapshot and then all events and plans of the state machine (see ``event_feed``)."""
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
        figures |= {name: value + figures.get(name, 0.0) for name, value in self._sources.counters().items()}
        figures["loaded_parameter_bytes"] = float(self._loader.loaded_bytes)
        segments, numerics = self._figures.segments, self._proofs.numerics
        found = status_of(self.config, self.state, self.node.incarnation, numerics, late, figures, segments, self._slow)
        unclaimed = {holder: sorted(ids) for holder, ids in self._loader.unclaimed.items()}
        links, store = self._outbox.kinds(), self._sources.full
        return replace(found, links=links, proof=self._proofs.state, store=store, unclaimed=unclaimed)
