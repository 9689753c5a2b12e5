"""The gateway's state machine: requests, their emitted tokens, and failover: a stream resumes in another attempt.

Owns what must survive the death of any worker: a request's prompt, every token that was emitted, and how often it was
present when a worker died. ``handle(event, now)`` returns the effects to perform, in order. Only the gateway starts
attempts: an attempt is prompt plus emitted tokens on a route; reports of older attempts and of fenced workers are
ignored, so that nothing is lost, repeated or reordered. Never sends, waits, tokenizes or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from ...control.route_switch import SwitchRoutes
from ...model.chain import Route
from ...sweep.events import (
    DraftsVerified,
    ExitEntered,
    GatewayNews,
    GivenBack,
    Preempted,
    Progressed,
    PromptScored,
    SatOut,
    Submission,
    TokensEmitted,
)
from ...sweep.page_events import Exported
from ..admission_limit import AdmissionLimit
from ..dispatch import dispatch, lacking_room, open_routes
from ..poison import Quarantine, outnumbered
from ..queue import WaitingQueue
from ..refusal import Refusal, RequestRefused
from ..request_timeout import RequestTimeout
from ..routes_changed import RoutesChanged
from ..routing_table import RoutingTable
from . import messages as m
from .application_usage import ApplicationUsage
from .arrival_check import refusal
from .capacity_waits import CapacityWaits
from .catalogue import Catalogue
from .decision import Decision
from .dispatch_messages import Chosen
from .dispatch_queries import Advice, DispatchQueries
from .drafts import no_drafter_here
from .invariants import check_state
from .lengths import Lengths
from .offline import OfflineBook
from .record import RequestRecord
from .request_moves import RequestMoves
from .sweep_report import SweepReport
from .tier_choices import TierChoices
from .values import Generation, ModelInfo, RequestView, StreamNews
from .workers import Workers

KEEP = 1024  # ended requests that can still be looked up


class RequestBook:
    """The requests of one gateway and all that decides about them (see the module)."""

    def __init__(
        self,
        address: str,
        models: Sequence[ModelInfo],
        *,
        page_size: int,
        timeouts: RequestTimeout,
        overload: AdmissionLimit,
        tenants: int = 0,
        lengths: Lengths | None = None,
        asks: bool = False,
    ) -> None:
        self.address = address  # address of the gateway actor, where workers send reports
        self.page_size = page_size
        self.timeouts = timeouts
        self.table = RoutingTable(model.id for model in models)
        self.catalogue = Catalogue(models, self.table)
        self.workers = Workers()
        self.overload = overload
        self.tenants = tenants  # tenants that have keys; 0: no keys, so applications are accounts
        self.quarantine = Quarantine()
        self.usage = ApplicationUsage()
        self.lengths = lengths or Lengths()
        self.moving = RequestMoves(self)  # moves of running requests
        self.choosing = TierChoices(self)  # choices of a tier
        self.asking = DispatchQueries(asks)  # questions about queued requests; asks: dispatchers choose between routes
        self.offline = OfflineBook(self)  # the offline requests of ``active``
        self.queue = WaitingQueue()  # the requests of ``active`` in state "waiting"
        self.active: dict[str, RequestRecord] = {}  # all and only the requests that have not ended
        self.capacity_waits = CapacityWaits(self.table, self.queue, self.active)
        self.past: OrderedDict[str, RequestView] = OrderedDict()  # the last ``KEEP`` that ended
        self.draining = False
        self._arrivals = 0
        self._freed = False  # a route has become idle or is no longer reserved: others may start
        self._effects: list[m.Effect] = []

    # events

    def handle(self, event: m.Event, now: float) -> list[m.Effect]:
        """Apply one event; the effects must be performed in order."""
        match event:
            case SweepReport():
                self._report(event, now)
            case Generation():
                self._generate(event, now)
            case m.End(request, stop):
                self._end(request, stop, now)
            case RoutesChanged():
                self.catalogue.learn(event, now)
                if event.failed:
                    self._expire(now)  # first, so that what fails now is not asked for again
                self._pump(now)
            case m.WorkerJoined(worker, incarnation):
                self._up(worker, incarnation, now)
            case m.WorkerEnded(worker, incarnation, cause):
                self._down(worker, incarnation, cause, now)
            case Chosen():
                if (advice := self.asking.accept(event, now)) is not None:
                    self._try(self.active[event.request], now, advice)
            case m.Unsent(request, attempt, reason):
                if (record := self.active.get(request)) is not None and record.workers and record.attempt == attempt:
                    self._given_back(record, reason, now)
            case m.HeartbeatReceived(worker, incarnation, serial):
                self._up(worker, incarnation, now)  # the news that it is up may have been lost
                if self.workers.incarnation(worker) == incarnation:  # or an ended life would speak for this one
                    self._effects += self.workers.heard(worker, serial)
                    self._wake(self.offline.accept_report(worker, event.offline, event.costs), now)
            case m.Move() | m.Vacate() | SwitchRoutes() | m.ExportUnsent() | m.HoldAnswered():
                self.moving.handle(event, now)
            case m.GatewayTick():
                self._expire(now)
                self.moving.tick(now)
                self._pump(now)
            case m.Drain(at_once):
                self.draining = True
                if at_once:
                    self._abort(now)
        while self._freed:
            self._freed = False
            self._pump(now)
        self._effects += map(m.WantRoutes, self.capacity_waits.drain())
        effects, self._effects = self._effects, []
        return effects

    def describe(self, request: str) -> RequestView | None:
        if (record := self.active.get(request)) is None:
            return self.past.get(request)
        self._check_drafter(record)
        return record.view()

    def _check_drafter(self, record: RequestRecord) -> None:
        """Find the reason against drafts of a running request again, since a model may have come or gone."""
        if record.state == "running" and record.route is not None:
            record.no_drafter = no_drafter_here(record.generation.drafts, record.route, self.table)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        check_state(self)

    # the life of a request

    def _generate(self, generation: Generation, now: float) -> None:
        if (refused := refusal(self, generation, now)) is not None:
            self._effects.append(m.Fail(generation.id, refused))
            return
        model, application = generation.application, self.table.models[generation.application]
        if application != model:
            generation = replace(generation, application=application)
        expected = self.lengths.expect(generation, model)
        record = RequestRecord(generation, self._arrivals, now, model, *expected, self.catalogue.virtual(model))
        self.active[record.id], self._arrivals = record, self._arrivals + 1
        if not generation.offline:
            self.overload.begin(record.account)
        self.choosing.joined(record)
        for name in record.applications:
            self.usage.change(name, 1, now)
        self.recount(record)
        self._wait(record, now)
        self._try(record, now)
        if record.state == "waiting" and record.id not in self.asking.open:
            record.note(now, "queued", ahead=self.queue.ahead(record.key))

    def recount(self, record: RequestRecord) -> None:
        """Recount the tokens that a request has left to compute, after any change to it."""
        if change := record.cost() - record.counted:
            record.counted += change
            self.overload.charge(record.account, change)
            self.table.charge(record.workers, change)

    def _wait(self, record: RequestRecord, now: float) -> None:
        self.queue.add(record.id, record.application, record.key, now)
        self.offline.waits(record)
        self.capacity_waits.arrived(record)

    def _try(self, record: RequestRecord, now: float, advice: Advice | None = None) -> None:
        """Start an attempt of a waiting request if there is a route; if there are several, ask a dispatcher first."""
        if record.id in self.asking.open:
            return
        wanted, by_credit = record.wanted(now), record.by_credit
        if self.capacity_waits.tick(wanted, now):
            return
        others = outnumbered(record.deaths, (other.deaths for other in self.active.values()))
        route = self.offline.route(record, now) if by_credit else dispatch(wanted, self.table, self.quarantine, others)
        if route is None:
            return
        left, decision = self.timeouts.left(record, now), None
        draft = advice.question.submission if advice else record.submission(self.address, self.page_size, left, now)
        if self.asking.wanted and not wanted.suspect and not by_credit:
            routes = open_routes(wanted, self.table, self.quarantine)
            if advice is not None:
                route, decision = self.asking.decide(advice, routes, route, now)
            elif len(routes) > 1 or self.asking.alone:
                self._effects.append(self.asking.ask(draft, routes, now))
                return
        self.queue.remove(record.id, record.application)
        draft = replace(draft, timeout=left, waited=record.waiting_time(now))
        self.emit(self._place(record, route, draft, now, decision))

    def _place(self, record: RequestRecord, route: Route, draft: Submission, now: float, by: Decision | None) -> m.Submit:
        record.start(route, now, by)
        record.no_drafter = no_drafter_here(draft.drafts, route, self.table)
        self.table.place(record.id, record.workers, record.counted)
        self.offline.sent(record, route.home)
        return m.Submit(route.home, replace(draft, route=route.id, route_version=route.version))

    def relocate(self, record: RequestRecord, route: Route, now: float, *, cancel: bool) -> m.Submit:
        """Move a request to another route: it starts anew there with all tokens when the returned effect is emitted.

        No death is counted.
        """
        if cancel:
            self._cancel(record)
        self._leave(record)
        record.wait(now)
        self.recount(record)
        draft = record.submission(self.address, self.page_size, self.timeouts.left(record, now), now)
        return self._place(record, route, draft, now, None)

    def restart(self, record: RequestRecord, now: float) -> None:
        """Start a request anew on any route, when there is one."""
        self._cancel(record)
        self._requeue(record, now)
        self._try(record, now)

    def park(self, record: RequestRecord) -> None:
        """Take a request off its workers that has ended on its first tier, and whose tier is not chosen yet."""
        self._freed |= record.alone or record.id in self.quarantine.routes
        self.moving.left(record)
        self._leave(record)
        record.park()
        self.recount(record)

    def go_up(self, record: RequestRecord, now: float) -> None:
        """Start a request anew on the top tier of its family: at its worker, which has KV of its prompt, if it can."""
        home = record.route.home if record.route is not None else ""
        self._cancel(record)
        self._freed |= record.alone or record.id in self.quarantine.routes
        self.moving.left(record)
        self._leave(record)
        record.go_up(now)
        self.recount(record)
        wanted = record.wanted(now)
        queued = record.by_credit or wanted.suspect or lacking_room(wanted, self.table) > 0
        routes = () if queued else open_routes(wanted, self.table, self.quarantine)
        route = next((one for one in routes if one.home == home), None)
        if route is not None:
            self.emit(self.relocate(record, route, now, cancel=False))
        else:
            self._wait(record, now)
            self._try(record, now)

    def emit(self, effect: m.Effect) -> None:
        """Add an effect to those of the event being handled."""
        self._effects.append(effect)

    def _pump(self, now: float) -> None:
        """Start waiting requests that can start, in order. Applications without a whole, open route are skipped."""
        for request in self.queue.in_order([name for name in self.queue.applications() if name not in self.table.routes]):
            message = f"model {self.active[request].model!r} is no longer served; choose another one"
            self._fail(self.active[request], now, RequestRefused(Refusal.UNKNOWN_MODEL, message))
        for request in self.queue.in_order([name for name in self.queue.applications() if self.table.routes.get(name)]):
            record = self.active[request]
            if self.quarantine.lets(record.deaths, self.table.routes[record.application]):
                self._try(record, now)
        self.moving.rebalance(now)
        self.capacity_waits.repeat()  # earlier ones may have been lost, or have come too early

    def _wake(self, more: bool, now: float) -> None:
        """Try requests that wait for offline credit, if it has grown."""
        for request in self.offline.wakes() if more else ():
            self._try(self.active[request], now)

    def _leave(self, record: RequestRecord) -> None:
        """Remove a request from its workers' counts and from all waits: its attempt or its wait is over."""
        self.asking.drop(record.id)
        self.capacity_waits.drop(record.id)
        self.offline.left(record)
        self.quarantine.release(record.id)
        self.table.remove(record.id, record.workers, record.counted)
        self.queue.remove(record.id, record.application)

    def _requeue(self, record: RequestRecord, now: float) -> None:
        """Queue a request whose attempt is lost for a new one, which starts from prompt plus emitted tokens."""
        self.moving.left(record)
        self._leave(record)
        record.wait(now)
        self.recount(record)
        self._wait(record, now)

    def _finish(self, record: RequestRecord, now: float, state: str, event: str, reason: str) -> None:
        self._freed |= record.alone or record.id in self.quarantine.routes
        self.moving.left(record)
        self._leave(record)
        del self.active[record.id]
        self._check_drafter(record)
        record.end(state, now, event, reason=reason)
        if not record.offline:
            self.overload.end(record.account, record.counted, now)
        for name in record.applications:
            self.usage.change(name, -1, now)
        self.choosing.left(record)
        self.lengths.ended(record, reason)
        self.asking.ended(record, now)
        self.past[record.id] = record.view()
        if len(self.past) > KEEP:
            self.past.popitem(last=False)
        self._freed |= bool(self.quarantine.routes)

    def _fail(self, record: RequestRecord, now: float, refused: RequestRefused) -> None:
        self._effects.append(m.Fail(record.id, refused))
        self._finish(record, now, "failed", "failed", refused.message)

    def _end(self, request: str, stop: bool, now: float) -> None:
        if (record := self.active.get(request)) is None:
            return
        self._cancel(record)
        self._effects.append(m.Closed(request))
        state, reason = ("finished", "stop") if stop else ("cancelled", "the client is gone")
        self._finish(record, now, state, state, reason)

    def _cancel(self, record: RequestRecord) -> None:
        """Free what the current attempt holds at its home."""
        if record.workers and record.workers[0] in self.table.alive:
            self._effects.append(m.CancelAt(record.workers[0], (record.id,)))

    def _expire(self, now: float) -> None:
        """Fail requests that have waited too long for a route, for room on one, or in total."""
        for record in self.timeouts.late(self.active.values(), now):
            self._fail(record, now, self.timeouts.expired())
        for request, refused in self.capacity_waits.late(self.timeouts, now):
            self._fail(self.active[request], now, refused)

    def _abort(self, now: float) -> None:
        for record in list(self.active.values()):
            self._cancel(record)
            self._fail(record, now, self.timeouts.broken_off())

    # workers

    def _up(self, worker: str, incarnation: int, now: float) -> None:
        known = self.workers.incarnation(worker)
        if self.workers.has_ended(worker, incarnation) or (known is not None and known >= incarnation):
            return
        if known is not None:
            self._down(worker, known, "replaced by a newer incarnation", now)
        self.workers.up(worker, incarnation)
        self.table.join(worker, now)

    def _down(self, worker: str, incarnation: int, cause: str, now: float) -> None:
        if not self.workers.down(worker, incarnation):
            return  # already known to have ended, or fenced long ago
        ran = [self.active[request] for request in self.table.lose(worker, now)]
        self.moving.lost(worker, now)
        self.offline.lost(worker)
        for record in sorted(ran, key=lambda record: record.key):
            record.note(now, "worker_died", worker=worker, cause=cause)
            self._fail_over(record, now)
        self._pump(now)

    def _fail_over(self, record: RequestRecord, now: float) -> None:
        """Fail a request over after the death of a worker of its route: it resumes elsewhere from the tokens it has.

        A request that has killed too many workers is refused instead. If the request ran alone, no other can be to blame: it
        counts even without a report that it was planned.
        """
        record.deaths.count(record.planned or record.alone)
        self._cancel(record)
        if record.deaths.poison:
            self._fail(record, now, record.deaths.refusal())
        else:
            self._requeue(record, now)

    # reports

    def _report(self, report: SweepReport, now: float) -> None:
        taken = self.workers.accept(report)
        if isinstance(taken, m.Replay):
            self._effects.append(taken)
        if taken is not True:
            return
        unwanted = {news.request for news in report.news if not self._heed(news, report, now)}
        if unwanted:  # the worker runs them for no client; the cancellation is on its way or was lost
            self._effects.append(m.CancelAt(report.worker, tuple(sorted(unwanted))))
        self._effects += self.workers.due(report.worker)
        self._wake(self.offline.accept_report(report.worker, report.offline, sweeps=report.sweep), now)

    def _heed(self, news: GatewayNews, report: SweepReport, now: float) -> bool:
        """Apply one effect of a worker's sweep machine.

        Return False if the worker runs a request that is not at home there.
        """
        if isinstance(news, Exported):
            self.moving.exported(news, report.worker, now)
            return True
        record = self.active.get(news.request)
        if record is None or record.workers[:1] != (report.worker,):
            return not (isinstance(news, Progressed) or (isinstance(news, TokensEmitted) and not news.finish))
        if news.attempt == record.attempt:
            match news:
                case Preempted():
                    record.preempted(now, urgent=news.urgent)
                case DraftsVerified():
                    record.verified(news)
                case SatOut():
                    record.sat_out(news)
                case ExitEntered():
                    record.entered_at(news)
                case TokensEmitted():
                    record.plan_seen(now, report.seconds)
                    self._emitted(record, news, now)
                case Progressed():
                    self.moving.progressed(news, now)
                    record.rise(news.risen, now)
                    record.progressed(news.computed, news.cached, now, report.seconds)
                    self.recount(record)
                case PromptScored():
                    if (complete := record.score(news)) is not None:
                        self._take(record, complete, now)
                case GivenBack():
                    self._given_back(record, news.reason, now)
        return True

    def _emitted(self, record: RequestRecord, emitted: TokensEmitted, now: float) -> None:
        if emitted.position > len(record.tokens):
            # Reports come in order, so the home itself has lost tokens: only a rerun from ours is exact.
            record.note(now, "gap", expected=len(record.tokens), got=emitted.position)
            self.restart(record, now)
            return
        news = record.extend(emitted, now)
        if news is None:
            return
        self.moving.resumed(record, now)
        self._take(record, news, now)

    def _take(self, record: RequestRecord, news: StreamNews, now: float) -> None:
        """Pass news of a request on, or hold them back until its tier is chosen."""
        if record.held is None:
            self.deliver(record, news, now)
        else:
            self.choosing.hold(record, news, now)

    def deliver(self, record: RequestRecord, news: StreamNews, now: float) -> None:
        """Deliver news to the client; the last tokens end the request."""
        self._effects.append(m.Deliver(record.shown(news)))
        if isinstance(news, PromptScored):
            return
        if news.finish:
            self._finish(record, now, "finished", "finished", news.finish)
        else:
            self.recount(record)

    def _given_back(self, record: RequestRecord, reason: str, now: float) -> None:
        if (why := record.given_back(reason, now, self.table).hopeless) is not None:
            self._fail(record, now, RequestRefused(why, reason.partition(": ")[2]))
        elif reason == "deadline":
            self._fail(record, now, self.timeouts.expired())
        else:
            self._freed |= record.alone
            if reason == "host-lost":
                self._fail_over(record, now)
            else:
                self._requeue(record, now)
        if record.state == "waiting":
            self._try(record, now)
