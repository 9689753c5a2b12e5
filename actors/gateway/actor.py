"""The gateway actor: the message and HTTP-facing shell around the request book.

Turns calls, reports and worker news into events for the request book, and effects into messages and stream news. Owns the
streams of its clients and nothing else; every decision is made in the request book. Implements ``GatewayPort`` for the HTTP
front in its own process. A sweep's report is handled in one go: no task and no message per token.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ...policies.cluster.demand import Use
from ...policies.cluster.reach import WorkerLosses
from ...policies.control.adoption import KeptState, ToldGateway, newest
from ...policies.control.route_switch import SwitchFigures, SwitchRoutes
from ...policies.requests.admission_limit import Held
from ...policies.requests.book import messages as m
from ...policies.requests.book.book import RequestBook
from ...policies.requests.book.queue_position import QueuePositions
from ...policies.requests.book.sweep_report import SweepReport
from ...policies.requests.event_id import AnswerBasis, basis_of
from ...policies.requests.rate_limit import LimitStatus, Verdict
from ...policies.requests.refusal import Refusal, RequestRefused
from ...policies.requests.request_ownership import Viewer, sequences_of
from ...policies.requests.routes_changed import RoutePieces, RoutesChanged
from ...policies.sweep.events import TokensEmitted
from ...policies.sweep.offline_capacity import decode_capacities
from ...runtime.actor.actor import Actor, PeerInfo
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.clock import Timer
from ...runtime.base.down import Down
from ...runtime.node.inspection import inspect_peers
from ..conditions import Conditions
from ..head_doubts import head_doubts
from .calls import OutgoingCalls, is_unknown, remembered, switch, vacate
from .limiting import Limiting
from .port import (
    ApplicationView,
    Census,
    Credit,
    DispatchFigures,
    DrainAnswered,
    GatewayPlace,
    GatewayStatus,
    Generation,
    KnownAnswer,
    LengthFigures,
    ModelInfo,
    MoveBegun,
    MoveFigures,
    NewApplication,
    Readiness,
    RefusedChange,
    RemovalView,
    RequestLine,
    RequestView,
    Service,
    TierFigures,
    accepted,
)
from .request_views import Recoveries, described, listed
from .scoring import AnswerScoring
from .stream import Offers, RequestStream
from .tagging import Tagging

LOST = "its connection to the gateway broke"
TICK = 0.1  # seconds between checks of heartbeats and waiting requests
FIND_SECONDS = 660.0  # timeout for finding an adapter in the folder; includes reading it
BASIS_SECONDS = 2.0  # seconds to wait for what answers follow from; a worker says it with every heartbeat
ANSWER_SECONDS = 30.0  # seconds, beyond the caller's wait, for the applications actor to answer


class Gateway(Actor):
    """A gateway: the actor that owns requests from admission to their last token (see the module).

    controller, applications: addresses. limiting: the limits of tenants. others: nodes of the other gateways.
    tagging: exchange of the state's ``lengths``. dispatchers: addresses asked in turn, each for ``patience`` seconds.
    autoscale: whether to report latencies to the controller. ``place``: where it is, for people.
    """

    def __init__(
        self,
        book: RequestBook,
        *,
        name: str,
        controller: str,
        applications: str = "",
        limiting: Limiting | None = None,
        others: Sequence[str] = (),
        tagging: Tagging | None = None,
        autoscale: bool = False,
        dispatchers: Sequence[str] = (),
        patience: float = 0.1,
        place: GatewayPlace | None = None,
    ) -> None:
        self.name = name
        self._limiting = limiting or Limiting()
        self.book = book
        self._note_others(others)
        parts = book.parts
        self._positions, self._recoveries = QueuePositions(parts.active, parts.table), Recoveries(parts.active)
        self._controller, self._applications = controller, applications
        self._streams: dict[str, RequestStream] = {}  # of all active requests
        self._offers = Offers()  # of these streams
        self._idle = asyncio.Event()  # set while nothing is active
        self._lives: dict[str, int] = {}  # worker -> its life, as the controller knows it
        self._calls = OutgoingCalls(controller, dispatchers, patience, self._handle, self._lives)
        self._conditions = Conditions()
        self._numerics: dict[str, str] = {}  # of each worker, by its last heartbeat
        self._tagging = tagging or Tagging(parts.lengths)
        self._scoring = AnswerScoring(parts, self._begin, self._end)
        self._autoscale = autoscale
        self.place = place or GatewayPlace(socket.gethostname(), os.getpid())
        self._timer: Timer | None = None
        self._kept: KeptState | None = None  # for the next head
        self._pieces = RoutePieces()
        self._losses = WorkerLosses()
        self._watched: dict[str, int] = {}  # worker -> its life that is monitored

    async def on_start(self) -> None:
        self.book.parts.address = str(self.ref)
        self.node.heartbeat = lambda: {"routes": self.book.parts.table.settled}
        self._idle.set()
        self._deafen = self.node.on_heartbeat(self._beat)
        self._tick()

    async def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._deafen()
        self._handle(m.Drain(now=True))
        await self._calls.stop(self.node)
        await self._tagging.stop(self.node)
        await self._limiting.stop()

    # messages

    @endpoint
    async def tokens(self, report: SweepReport) -> None:
        """Take a worker's sweep report: all the news of that sweep for this gateway."""
        self._perform(self.book.accept_report(report, self.node.clock.now()))

    @endpoint
    async def heard(self, beat: m.HeartbeatReceived) -> None:
        """Take a worker's heartbeat.

        It is queued behind earlier reports, so reports that wait in this mailbox do not count as lost.
        """
        self._handle(beat)

    @endpoint(urgent=True)
    async def routes(self, update: RoutesChanged) -> None:
        """Take a publication of routes from the controller, or a piece of one."""
        if (whole := self._pieces.take(update)) is not None:
            self._handle(whole)

    @endpoint(urgent=True)
    async def keep(self, state: KeptState) -> None:
        """Keep the controller's state for the next head."""
        self._kept = newest((self._kept, state))

    @endpoint(urgent=True)
    async def tell(self) -> ToldGateway:
        """Tell a new head what this gateway has of the one before."""
        return ToldGateway(f"{self.node.name}/gateway", self.book.parts.table.version, self._kept)

    @endpoint(urgent=True)
    async def up(self, worker: str, incarnation: int) -> None:
        """Note that a worker has joined."""
        self._lives[worker] = incarnation
        self._watch(worker, incarnation)
        self._handle(m.WorkerJoined(worker, incarnation))
        if self.node.cut_off().get(worker) == incarnation:
            self._lose(worker, incarnation)

    @endpoint(urgent=True)
    async def down(self, worker: str, incarnation: int, cause: str) -> None:
        """Note that a worker has ended."""
        self._recoveries.lost(worker, cause, self.node.clock.now())
        self._handle(m.WorkerEnded(worker, incarnation, cause))

    @endpoint(urgent=True)
    async def cuts(self, pairs: list[tuple[str, str]]) -> None:
        """Take all pairs of workers that do not reach each other."""
        self._handle(m.WorkersCut(tuple(pairs)))

    @endpoint(urgent=True)
    async def holds(self, gateway: str, requests: int, tokens: int) -> None:
        """Take another gateway's load: its share of the requests and tokens that the server admits."""
        self.book.parts.overload.hear(gateway, Held(requests, tokens, self.node.clock.now()))

    @endpoint(urgent=True)
    async def gateways(self, nodes: list[str]) -> None:
        """Note the nodes of all gateways, which share what the server admits; some may be on other machines."""
        self._note_others([name for name in nodes if name != self.node.name])
        self.book.parts.overload.share(len(nodes))

    @endpoint(urgent=True)
    async def dispatchers(self, addresses: list[str]) -> None:
        """Ask these dispatchers from now on; none: those of before, which may come again."""
        self._calls.ask_of(addresses)

    @endpoint(concurrent=True)
    async def knows(self, version: int) -> None:
        """Return once publication ``version`` of the routes has arrived."""
        await self.until(lambda: self.book.parts.table.version >= version)

    @endpoint(concurrent=True)
    async def drained(self, application: str, version: int) -> None:
        """Return once publication ``version`` of the routes has arrived and the application has no request left here."""
        await self.until(lambda: self.book.parts.table.version >= version and self.book.parts.usage.none(application))

    @endpoint(urgent=True)
    async def uses(self) -> dict[str, Use]:
        """Return the usage of each application at this gateway: its active requests, or how long it has been idle."""
        return dict(self.book.usage(self.node.clock.now()))

    @endpoint(concurrent=True)
    async def quiet(self, application: str, version: int) -> None:
        """Return once publication ``version`` of the routes has arrived and no worker holds a request of the application."""
        table, active = self.book.parts.table, self.book.parts.active
        await self.until(
            lambda: (
                table.version >= version
                and not any(r.placement.workers for r in active.values() if r.application == application)
            )
        )

    @endpoint(concurrent=True)
    async def vacated(self, worker: str, version: int, grace: float) -> None:
        """Return once publication ``version`` of the routes has arrived and the worker holds no request of this gateway.

        Requests move away; any still there after ``grace`` seconds is given back and goes on elsewhere.
        """
        await vacate(self.book.parts, self.until, self._handle, self.node.clock, (worker, version, grace))

    @endpoint(concurrent=True)
    async def switch(self, order: SwitchRoutes) -> int:
        """Carry out a switch; return its number of stale requests once the ended routes hold none of this gateway's
        requests.
        """
        return await switch(self.book.parts, order, self.until, self._handle)

    @endpoint(concurrent=True)
    async def switched(self, number: int) -> SwitchFigures:
        """Return the figures of a switch, once none of its stale requests waits any more."""
        switches = self.book.parts.switches
        await self.until(lambda: switches.settled(number))
        return switches.figures(number)

    @endpoint(urgent=True)
    async def sequences(self) -> dict[str, Census]:
        """Return the running and waiting sequences of each model, and by which chains its sequences were served."""
        census = self._positions.census()
        for (model, variant), count in self.tiers().variants.items():
            census.setdefault(model, Census()).chains[variant] = count
        for (model, _), found in self.tiers().similarity.items():
            one = census.setdefault(model, Census())
            one.similarity = one.similarity.plus(found)
        return census

    @endpoint(urgent=True)
    async def status(self) -> GatewayStatus:
        """Return where this gateway is and what it has to do, for people."""
        return GatewayStatus(self.place, self.book.parts.draining, len(self.book.parts.active))

    @endpoint(urgent=True)
    async def service(self) -> Service:
        """Return the models served here and the readiness, for status displays."""
        return Service([info for info in self.models() if not info.starts], self.ready())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the state holds."""
        await self._conditions.until(condition)

    # GatewayPort

    def models(self) -> list[ModelInfo]:
        return self.book.parts.catalogue.models()

    def default_model(self) -> str:
        return self.book.parts.table.default

    def ready(self) -> Readiness:
        return dataclasses.replace(self.book.parts.catalogue.ready(self.book.parts.draining), doubts=head_doubts(self.node))

    def describe(self, request: str) -> RequestView | None:
        return described(self.book, self._positions, request, self.node.clock.now())

    def requests(self, viewer: Viewer, limit: int) -> list[RequestLine]:
        return listed(self.book, self._positions, viewer, limit, self.node.clock.now())

    def generate(self, generation: Generation) -> RequestStream:
        """See ``GatewayPort``."""
        if generation.id in self._streams:
            raise RequestRefused(Refusal.INVALID, f"request {generation.id!r} is running already")
        if not generation.offline:
            self._scoring.give_way()
        return self._begin(generation, RequestStream(generation.id, self._end, self._offers))

    def _begin(self, generation: Generation, stream: RequestStream) -> RequestStream:
        self._streams[generation.id] = stream
        self._idle.clear()
        self._handle(generation)
        if (error := stream.refused()) is not None:
            raise error
        record = self.book.parts.active.get(generation.id)
        if record is not None:
            stream.progress = lambda: self._positions.progress(record, self.node.clock.now())
        return stream

    async def answer_basis(self, models: Sequence[str]) -> AnswerBasis:
        """See ``GatewayPort``."""
        table = self.book.parts.table
        try:
            async with asyncio.timeout(BASIS_SECONDS):
                await self.until(lambda: table.version > 0 and table.alive <= self._numerics.keys())
        except TimeoutError:
            message = "the numerics of a worker are not known yet; try again"
            raise RequestRefused(Refusal.UNAVAILABLE, message, 1.0) from None
        chains = [table.chains[table.models[model]] for model in models if model in table.models]
        return basis_of(chains, (self._numerics[worker] for worker in table.alive))

    async def remembered(self, generation: Generation) -> KnownAnswer:
        """See ``GatewayPort``."""
        table = self.book.parts.table
        application = table.models.get(generation.application, "")
        homes = sorted({route.home for route in table.routes.get(application, ())})
        return await remembered(self.node, generation, application, {home: self._numerics.get(home, "") for home in homes})

    def credits(self, application: str) -> list[Credit]:
        start = self.book.parts.catalogue.start(application)
        return self.book.credits(self.book.parts.table.models.get(start, start))

    async def credit_grown(self) -> None:
        seen = self.book.growth()
        await self.until(lambda: self.book.growth() > seen)

    def move(self, request: str, worker: str, route: str) -> list[MoveBegun]:
        """See ``GatewayPort``."""
        now, sequences = self.node.clock.now(), sequences_of(request, self._streams)
        moves = [self.book.plan_move(id, worker, route, now) for id in sequences]
        for move in moves:
            self._handle(move)
        return [move.begun for move in moves]

    def moves(self) -> MoveFigures:
        return self.book.parts.claims.figures

    def tiers(self) -> TierFigures:
        return self.book.parts.choices.figures

    def census(self) -> dict[str, Census]:
        return self._positions.census()

    def tenants(self) -> dict[str, Census]:
        return self._positions.tenants()

    def lengths(self) -> LengthFigures:
        return self.book.parts.lengths.figures

    def dispatching(self) -> DispatchFigures:
        return self.book.parts.asking.figures

    def cancel(self, request: str) -> bool:
        """See ``GatewayPort``."""
        sequences = sequences_of(request, self._streams)
        for id in sequences:
            stream = self._streams[id]
            self._handle(m.End(id))
            stream.fail(RequestRefused(Refusal.CANCELLED, "the request was cancelled"))
        return bool(sequences)

    async def charge(self, tenant: str, tokens: int) -> Verdict:
        return await self._limiting.charge(self.node, tenant, tokens)

    def settle(self, tenant: str, charged: int, used: int) -> None:
        self._limiting.settle(self.node, tenant, charged, used)

    async def standings(self, tenants: list[str]) -> dict[str, dict[str, LimitStatus]]:
        return await self._limiting.standings(self.node, tenants)

    async def limit(self, tenant: str, name: str) -> int:
        return self._limiting.limit(tenant, name)

    async def add_application(self, new: NewApplication) -> ApplicationView:
        """See ``GatewayPort``."""
        ref = self.node.ref(self._applications)
        kind: Any = ApplicationView | RefusedChange
        view: ApplicationView = accepted(await ref.add(new, timeout=new.wait + ANSWER_SECONDS, returns=kind))
        return view

    async def find_application(self, name: str) -> bool:
        """See ``GatewayPort``."""
        kind: Any = bool | RefusedChange
        found: bool = accepted(await self.node.ref(self._applications).find(name, timeout=FIND_SECONDS, returns=kind))
        return found

    async def remove_application(self, name: str, grace: float, default: str = "") -> RemovalView:
        """See ``GatewayPort``."""
        ref = self.node.ref(self._applications)
        kind: Any = RemovalView | RefusedChange
        view: RemovalView = accepted(await ref.remove(name, grace, default, timeout=grace + ANSWER_SECONDS, returns=kind))
        return view

    async def drain_worker(self, worker: str, drain: bool) -> DrainAnswered:
        """See ``GatewayPort``."""
        answer = await self.node.ref(self._controller).drain_worker(worker, drain, returns=DrainAnswered)
        accepted(answer.refused)
        return answer

    async def cluster(self) -> dict[str, Any]:
        view: dict[str, Any] = await self.node.ref(self._controller).cluster()
        return view

    async def claims(self, workers: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
        """Return who claims components of these models on workers, and why."""
        found: list[dict[str, Any]] = await self.node.ref(self._controller).claims(list(workers), list(models))
        return found

    async def actors(self) -> list[dict[str, Any]]:
        """List the actors of all reachable nodes (see ``GatewayPort``). A node that does not answer is left out."""
        return [dataclasses.asdict(view) for view in [self.node.inspect(), *await inspect_peers(self.node)]]

    async def drain(self, seconds: float) -> None:
        """See ``GatewayPort``."""
        self._scoring.give_way()
        self._handle(m.Drain())
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self._handle(m.Drain(now=True))
        await self._tagging.flush(self.node)

    # the shell

    def _end(self, request: str, stop: bool) -> None:
        self._handle(m.End(request, stop))

    def _tick(self) -> None:
        self._timer = self.node.clock.call_at(self.node.clock.now() + TICK, self._tick)  # first, since a fault may follow
        self._handle(m.GatewayTick())
        self._look_for_losses()
        for worker, life in self._lives.items():
            if is_unknown(self.node, worker, life):
                self.node.seek(worker)
        if self._others:
            self._share()
        parts, now = self.book.parts, self.node.clock.now()
        if self._autoscale and (seen := parts.asking.seen(parts.active, now)) is not None:
            self.node.ref(self._controller).observed.cast(*seen)
        self._tagging.tick(self.node)
        self._limiting.tick(self.node)
        self._scoring.tick(now)
        for worker, outcome in self._recoveries.tick():
            self.node.ref(self._controller).recovered.cast(worker, outcome)

    def _look_for_losses(self) -> None:
        """Let requests go on elsewhere whose workers this gateway does not reach.

        One that outlives its head acts on broken connections at once, as there may be no head to say what they mean.
        """
        alive = self.book.parts.table.alive
        lost = {name: life for name, life in self.node.cut_off().items() if name in alive}
        if self._kept is not None:
            reached = {name: peer.incarnation for name, peer in self.node.peers().items()}
            lost |= self._losses.look(alive, self._lives, reached)
        for worker, life in lost.items():
            self._lose(worker, life)

    def _watch(self, worker: str, life: int) -> None:
        """Monitor that life of a worker, once it is met."""
        if self._watched.get(worker) != life and self.node.current_incarnation(worker) == life:
            self._watched[worker] = life
            self.node.monitor(worker, self._ended)

    def _ended(self, down: Down) -> None:
        """Act at once if a worker is cut off from here, as it has dropped the requests; of other ends the head tells."""
        self._watched.pop(down.node, None)
        if down.node in self.node.cut_off():
            self._lose(down.node, down.incarnation)

    def _lose(self, worker: str, life: int) -> None:
        self._recoveries.lost(worker, LOST, self.node.clock.now())
        self._handle(m.WorkerEnded(worker, life, LOST, lasting=False))

    def _beat(self, peer: PeerInfo) -> None:
        if (reports := peer.payload.get("reports")) is not None and not peer.lost:  # sent by a worker
            self._watch(peer.id.name, peer.incarnation)
            self._numerics[peer.id.name] = numerics = peer.payload.get("numerics", "")
            capacities = decode_capacities(peer.payload)
            serial = reports.get(self.book.parts.address, 0)
            speed = peer.payload.get("speed", 0.0)
            beat = m.HeartbeatReceived(peer.id.name, peer.incarnation, serial, *capacities, speed=speed, numerics=numerics)
            self.node.ref(self.book.parts.address).heard.cast(beat)

    def _note_others(self, others: Sequence[str]) -> None:
        self._others = others
        self.book.parts.table.seat = self.book.parts.address if others else ""

    def _share(self) -> None:
        """Tell the other gateways this one's load, and take its share of the capacity that is free overall."""
        held = self.book.parts.overload.tick(self.node.clock.now())
        for name in sorted(self.node.peers().keys() & set(self._others)):
            self.node.ref(f"{name}/gateway").holds.cast(self.node.name, held.requests, held.tokens)

    def _handle(self, event: m.Event) -> None:
        self._perform(self.book.handle(event, self.node.clock.now()))

    def _perform(self, effects: list[m.Effect]) -> None:
        for effect in effects:
            match effect:
                case m.Deliver(news):
                    ended = isinstance(news, TokensEmitted) and news.finish
                    stream = self._streams.pop(news.request) if ended else self._streams[news.request]
                    stream.put(news)
                case m.Closed(request):
                    self._streams.pop(request).close()
                case m.Fail(request, refused):
                    self._streams.pop(request).fail(refused)
                case _:
                    self._calls.send(self.node, self.book.parts.address, effect)
        if not self._streams:
            self._idle.set()
        self._conditions.tick()
