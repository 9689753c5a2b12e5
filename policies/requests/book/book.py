"""The request book: the one owner of the lives of a gateway's requests, from their arrival to their end.

Owns what must survive the death of any worker: a request's prompt, every token that was emitted, and how often it was
present when a worker died. ``handle(event, now)`` returns the effects to perform, in order. Only the book starts attempts,
so that a stream resumes in another attempt where it was. Never sends, waits, tokenizes or reads a clock.

``lifecycle.py`` has the stages of a life, ``settling.py`` what becomes of a request, ``reports.py`` the path of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...cluster.demand import Use
from ...control.route_switch import SwitchRoutes
from ...sweep.events import TokensEmitted
from ..account import is_only_account
from ..refusal import Refusal, RequestRefused
from ..routes_changed import RoutesChanged
from ..routing_table import RoutingTable
from . import absences, chain_switching, moving, pausing, reports, switching
from . import messages as m
from .dispatch_messages import Chosen
from .invariants import check_parts
from .lifecycle import LifeEvent
from .parts import BookParts
from .record import RequestRecord
from .request_view import view_of
from .settlement import RequestClaim
from .settling import advised, fail, fail_over, give_back, refresh_drafter, settle, try_start, wait_here
from .sweep_report import SweepReport
from .token_progress import TokenProgress
from .values import Credit, Generation, RequestView


class RequestBook:
    """The requests of one gateway and all that decides about them (see the module)."""

    def __init__(self, parts: BookParts) -> None:
        self.parts = parts

    def accept_report(self, report: SweepReport, now: float) -> list[m.Effect]:
        """Apply a worker's report, and return the effects to perform in order."""
        reports.accept(self.parts, report, now)
        return self._effects(now)

    def handle(self, event: m.Event, now: float) -> list[m.Effect]:
        """Apply one event; the effects must be performed in order."""
        parts = self.parts
        match event:
            case SweepReport():
                return self.accept_report(event, now)
            case Generation():
                self._arrive(event, now)
            case m.End(request, stop):
                if (record := parts.active.get(request)) is not None:
                    ending = LifeEvent.STOP if stop else LifeEvent.CANCEL
                    settle(parts, RequestClaim(record, ending, "stop" if stop else "the client is gone"), now)
            case RoutesChanged():
                parts.catalogue.learn(event, now)
                parts.pages.keep(parts.table.chains)
                parts.chains.keep(parts.table.chains)
                if event.failed:
                    self._expire(now)  # first, so that what fails now is not asked for again
                self._pump(now)
            case m.WorkerJoined(worker, incarnation):
                self._up(worker, incarnation, now)
            case m.WorkerEnded(worker, incarnation, cause, lasting):
                self._down(worker, incarnation, cause, now, lasting=lasting)
            case m.WorkersCut(pairs):
                parts.table.cut(pairs, now)
                self._forgive(map(frozenset, pairs))
                self._pump(now)
            case Chosen():
                if (advice := parts.asking.accept(event, now)) is not None:
                    advised(parts, advice, now)
            case m.Unsent(request, attempt, reason):
                if (record := parts.active.get(request)) is not None and record.runs(attempt):
                    give_back(parts, record, reason, now)
            case m.HeartbeatReceived():
                self._heard(event, now)
            case m.Move() | m.Vacate() | SwitchRoutes() | m.ExportUnsent() | m.HoldAnswered():
                switching.handle_move(parts, event, now)
            case m.GatewayTick():
                self._expire(now)
                switching.tick(parts, now)
                chain_switching.time_passes(parts, now)
                absences.time_passes(parts, now)
                self._pump(now)
            case m.Drain(at_once):
                parts.draining = True
                for record in list(parts.active.values()) if at_once else ():
                    fail(parts, record, parts.timeouts.broken_off(), now)
        return self._effects(now)

    def plan_move(self, request: str, worker: str, route: str, now: float) -> m.Move:
        """Return the move of a running request. Raises RequestRefused if it cannot move there."""
        return moving.plan(self.parts, request, worker, route, now)

    def describe(self, request: str) -> RequestView | None:
        """Return the view of a request that runs or has ended lately."""
        if (record := self.parts.active.get(request)) is None:
            return self.parts.past.get(request)
        refresh_drafter(self.parts, record)
        return view_of(record)

    def credits(self, application: str) -> list[Credit]:
        """Return the credit of each worker for an application (see ``GatewayPort``)."""
        return self.parts.offline.credits(application, self.parts.table, self.parts.active)

    def growth(self) -> int:
        """Return a counter that rises whenever offline credit grows or may have grown."""
        return self.parts.offline.growth(self.parts.table.version)

    def usage(self, now: float) -> Mapping[str, Use]:
        """Return the usage of each application: its active requests, or how long it has been idle."""
        parts, waits = self.parts, self.parts.capacity_waits
        wanted = parts.table, parts.queue, parts.active
        return parts.usage.report(parts.table.routes, now, waits.wants(*wanted), waits.offline(*wanted))

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        check_parts(self.parts)

    # the steps of an event

    def _effects(self, now: float) -> list[m.Effect]:
        """Return the effects of an event, after requests have started where others have left."""
        parts = self.parts
        while parts.freed:
            parts.freed = False
            self._pump(now)
        parts.effects += map(m.WantRoutes, parts.capacity_waits.drain())
        return parts.take_effects()

    def _arrive(self, generation: Generation, now: float) -> None:
        parts = self.parts
        if (refused := _refusal(parts, generation, now)) is not None:
            parts.emit(m.Fail(generation.id, refused))
            return
        model, application = generation.application, parts.table.models[generation.application]
        if application != model:
            generation = replace(generation, application=application)
        features, expected = parts.lengths.expect(generation, model)
        scored, virtual = generation.sampling.prompt_logprobs >= 0, parts.catalogue.virtual(model)
        progress = TokenProgress(generation.prompt, generation.max_tokens, scored, virtual)
        record = RequestRecord(generation, parts.arrivals, now, model, progress, features, expected)
        if known := generation.known:
            parts.emit(m.Deliver(TokensEmitted(parts.address, record.id, 0, len(progress.tokens), known, [], "")))
            progress.tokens.extend(known)
        parts.active[record.id], parts.arrivals = record, parts.arrivals + 1
        if not generation.offline:
            parts.overload.begin(record.account)
        if generation.auto is not None:
            parts.choices.join(record, parts.catalogue, parts.table.models[generation.auto.top])
        for name in record.applications:
            parts.usage.change(name, 1, now)
        parts.recount(record)
        absences.come(parts, record)
        wait_here(parts, record, now)
        try_start(parts, record, now)
        if record.waiting and record.id not in parts.asking.open:
            record.history.note(now, "queued", ahead=parts.queue.ahead(record.key))

    def _pump(self, now: float) -> None:
        """Start waiting requests that can start, in order. Applications without a whole, open route are skipped."""
        parts = self.parts
        table, queue = parts.table, parts.queue
        lost = [name for name in queue.applications() if not table.routes.get(name)]
        for record in [parts.active[request] for request in queue.in_order(lost)] if lost else ():
            if record.variant:
                queue.remove(record.id, record.variant)
                wait_here(parts, record, now)
        for request in queue.in_order([name for name in queue.applications() if name not in table.routes]):
            record = parts.active[request]
            message = f"model {record.model!r} is no longer served; choose another one"
            fail(parts, record, RequestRefused(Refusal.UNKNOWN_MODEL, message), now)
        for request in queue.in_order([name for name in queue.applications() if _open(table, name)]):
            record = parts.active[request]
            if parts.quarantine.lets(record.deaths, table.routes[record.application]):
                try_start(parts, record, now)
        moving.rebalance(parts, now)
        parts.capacity_waits.repeat(table, queue, parts.active)  # earlier ones may have been lost, or have come too early

    def _expire(self, now: float) -> None:
        """Fail requests that have waited too long for a route, for room on one, or in total."""
        parts, timeouts = self.parts, self.parts.timeouts
        for record in timeouts.late(parts.active.values(), now):
            fail(parts, record, timeouts.expired(), now)
        for request, refused in timeouts.unserved(parts.queue, parts.table, now):
            fail(parts, parts.active[request], refused, now)
        for request in parts.capacity_waits.late(timeouts, now):
            fail(parts, parts.active[request], timeouts.crowded(parts.active[request].model), now)

    def _up(self, worker: str, incarnation: int, now: float) -> None:
        workers = self.parts.workers
        known = workers.incarnation(worker)
        if workers.has_ended(worker, incarnation) or (known is not None and known >= incarnation):
            return
        if known is not None:
            self._down(worker, known, "replaced by a newer incarnation", now)
        if workers.up(worker, incarnation):
            self._forgive([frozenset((worker,))])
        self.parts.table.join(worker, now)

    def _down(self, worker: str, incarnation: int, cause: str, now: float, *, lasting: bool = True) -> None:
        """Take a worker's death: moves that need it are given up first, then its requests fail over, in order."""
        parts = self.parts
        for record in parts.active.values() if lasting else ():
            record.deaths.died(worker)
        if not parts.workers.down(worker, incarnation, lasting=lasting):
            return  # already known to have ended, or fenced long ago
        ran = [parts.active[request] for request in parts.table.lose(worker, now)]
        moving.lost(parts, worker, now)
        pausing.lost(parts, worker, now)
        parts.offline.lost(worker)
        parts.pages.lose(worker)
        parts.absent.lose(worker)
        for record in sorted(ran, key=lambda record: record.key):
            record.history.note(now, "worker_died", worker=worker, cause=cause)
            fail_over(parts, record, now, unsure=() if lasting else (worker,))
        self._pump(now)

    def _forgive(self, lost: Iterable[frozenset[str]]) -> None:
        """Blame no request for workers that were out of reach, or did not reach each other, and live."""
        lives = list(lost)
        for record in self.parts.active.values():
            if record.deaths.unsure and any(one <= record.deaths.unsure for one in lives):
                record.deaths.forgive()

    def _heard(self, beat: m.HeartbeatReceived, now: float) -> None:
        parts, worker = self.parts, beat.worker
        self._up(worker, beat.incarnation, now)  # the news that it is up may have been lost
        if parts.workers.incarnation(worker) == beat.incarnation:  # or an ended life would speak for this one
            parts.effects += parts.workers.heard(worker, beat.serial)
            known = worker in parts.table.alive
            if known and beat.numerics and parts.table.take_numerics(worker, beat.numerics):
                moving.rebalance(parts, now)
            parts.table.paces.hear(worker, beat.speed, beat.costs, parts.table.alive)
            if worker in parts.table.alive and parts.offline.accept_report(worker, beat.offline, beat.costs):
                reports.wake(parts, now)


def _open(table: RoutingTable, application: str) -> bool:
    """Return whether an application or a variant of it has a route."""
    variants = table.variants.get(application, ())
    return bool(table.routes.get(application)) or any(table.routes.get(name) for name in variants)


def _refusal(parts: BookParts, generation: Generation, now: float) -> RequestRefused | None:
    """Return the reason to refuse a request, or None to admit it.

    Offline requests displace no others: they are sent by credit only, so the overload limit does not count them.
    """
    for model in generation.models:
        if (unknown := parts.catalogue.unknown(model)) is not None:
            return unknown
    if parts.draining:
        return parts.timeouts.closing()
    if generation.id in parts.active:
        return RequestRefused(Refusal.INVALID, f"request {generation.id!r} is running already")
    for model in generation.models:
        if (failed := parts.timeouts.failed(parts.table.models[model], parts.table, now)) is not None:
            return failed
        if (unfit := parts.catalogue.unfit(generation, model)) is not None:
            return unfit
    if generation.offline:
        return None
    tokens = parts.catalogue.virtual(generation.application) + len(generation.prompt) + generation.max_tokens
    alone = is_only_account(parts.tenants, len(parts.catalogue.configured), len(parts.table.models))
    return parts.overload.refusal(generation.account, tokens, len(parts.queue), now, alone=alone)
