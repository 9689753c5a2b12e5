"""The gateway's state machine: requests, their emitted tokens and their attempts.

Owns what must survive the death of any worker: a request's prompt, every token that was emitted, and how often it was
present when a worker died. ``handle(event, now)`` returns the effects to perform, in order. Only the gateway starts
attempts: an attempt is prompt plus emitted tokens on a route; reports of older attempts and of fenced workers are
ignored, so that nothing is lost, repeated or reordered. Never sends, waits, tokenizes or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from blockwright.actors.gateway.messages import (
    Acknowledge,
    CancelAt,
    Closed,
    Deliver,
    Down,
    Drain,
    Effect,
    End,
    Event,
    Fail,
    Generate,
    Heard,
    Replay,
    Report,
    Routes,
    Submit,
    Tick,
    Unsent,
    Up,
)
from blockwright.actors.gateway.overload import Crowd
from blockwright.actors.gateway.port import Generation, ModelInfo, Readiness, RequestView
from blockwright.actors.gateway.record import Record
from blockwright.actors.gateway.routing_table import Board
from blockwright.actors.report_sequence import Ledger
from blockwright.actors.worker.messages import GatewayNews, SweepReport
from blockwright.policies.requests.admission import admit
from blockwright.policies.sweep.events import GivenBack, Preempted, Progressed, PromptScored, TokensEmitted

KEEP = 1024  # ended requests that can still be looked up
DEATHS = 3  # worker deaths at which a request fails
AVOID_SECONDS = 0.25  # how long a route is not tried again after its home gave the request back


class GatewayState:
    """See the module."""

    def __init__(
        self,
        address: str,
        models: Sequence[ModelInfo],
        *,
        page_size: int,
        worker_wait: float,
        max_waiting: int,
        max_waiting_tokens: int = 0,
        gateways: int = 1,
    ) -> None:
        self.address = address  # of the gateway actor, where workers send reports
        self.catalogue = {model.id: model for model in models}
        self.page_size, self.worker_wait = page_size, worker_wait
        self.crowd = Crowd(max_waiting, max_waiting_tokens, gateways)
        self.board = Board(self.catalogue)
        self.active: dict[str, Record] = {}  # all and only the requests that have not ended
        self.waiting: dict[str, Record] = {}  # those of ``active`` in state "waiting"
        self.past: OrderedDict[str, RequestView] = OrderedDict()  # the last ``KEEP`` that ended
        self.ledgers: dict[str, Ledger] = {}  # worker -> its reports; the keys are those of ``board.up``
        self.draining = False
        self._arrivals = 0
        self._freed = False  # a route has become idle, or free for all: others may start now
        self._effects: list[Effect] = []

    # events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the effects must be performed in order."""
        match event:
            case Report(report):
                self._report(report, now)
            case Generate(generation):
                self._generate(generation, now)
            case End(request, stop):
                self._end(request, stop, now)
            case Routes(update):
                self.board.update(update, now)
                self._pump(now)
            case Up(worker, incarnation):
                self._up(worker, incarnation, now)
            case Down(worker, incarnation, cause):
                self._down(worker, incarnation, cause, now)
            case Unsent(request, attempt, reason):
                if (record := self._current(request, attempt)) is not None:
                    self._given_back(record, reason, now)
            case Heard(worker, incarnation, serial):
                self._heard(worker, incarnation, serial)
            case Tick():
                self._expire(now)
                self._pump(now)
            case Drain(at_once):
                self.draining = True
                if at_once:
                    self._abort(now)
        while self._freed:
            self._freed = False
            self._pump(now)
        effects, self._effects = self._effects, []
        return effects

    def describe(self, request: str) -> RequestView | None:
        record = self.active.get(request)
        return record.view() if record else self.past.get(request)

    def models(self) -> list[ModelInfo]:
        """The applications served, in the order of the configuration."""
        return [
            ModelInfo(
                model.id,
                model.checkpoint,
                self.board.max_length.get(model.id, model.max_length),
                model.created,
                bool(self.board.routes[model.id]),
                self.board.bases.get(model.id),
                self.board.rooms(model.id),
            )
            for model in self.catalogue.values()
            if model.id not in self.board.withdrawn
        ]

    def ready(self) -> Readiness:
        applications = {
            model.id: "ready" if model.ready else "waiting" if model.id in self.board.served else "loading"
            for model in self.models()
        }
        if self.draining:
            return Readiness(False, "the server is shutting down", 5.0, applications)
        if "ready" in applications.values():
            return Readiness(True, "", 0.0, applications)
        waiting = "waiting" in applications.values()
        return Readiness(False, "no worker is up" if waiting else "models are loading", 1.0, applications)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        self.board.check()
        assert set(self.ledgers) == set(self.board.up)
        assert set(self.waiting) == {r.id for r in self.active.values() if r.state == "waiting"}
        assert all(r.state in ("waiting", "running") for r in self.active.values())
        assert all(bool(r.workers) == (r.state == "running") for r in self.active.values())
        assert set(self.board.held) <= {r.id for r in self.active.values() if r.alone or r.suspect}
        for ledger in self.ledgers.values():
            ledger.check()

    # the life of a request

    def _generate(self, generation: Generation, now: float) -> None:
        refusal = self._refusal(generation) or self.crowd.refusal(generation, self.active, len(self.waiting), now)
        if refusal is not None:
            self._effects.append(refusal)
            return
        record = Record(generation, self._arrivals, now)
        self._arrivals += 1
        self.active[record.id] = self.waiting[record.id] = record
        self._try(record, now)
        if record.id in self.waiting:
            record.note(now, "queued", ahead=sum(other.key < record.key for other in self.waiting.values()))

    def _refusal(self, generation: Generation) -> Fail | None:
        name, application = generation.id, generation.application
        if application not in self.catalogue or application in self.board.withdrawn:
            served = ", ".join(model.id for model in self.models())
            message = f"model {application!r} does not exist; there are: {served}"
            return Fail(name, 404, message, param="model", code="model_not_found")
        if self.draining:
            return _unavailable(name, "the server is shutting down; send the request elsewhere or again later", 5.0)
        if not generation.prompt or generation.max_tokens < 1:
            return Fail(name, 400, "prompt and max_tokens need at least one token each", code="invalid_value")
        if name in self.active:
            return Fail(name, 400, f"request {name!r} is running already", code="invalid_value")
        prompt, answer = len(generation.prompt), generation.max_tokens
        limit = self.board.max_length.get(application, self.catalogue[application].max_length)
        if prompt + answer > limit:
            message = (
                f"the prompt has {prompt} tokens and the answer up to {answer}, together more than the {limit} of model "
                f"{application!r}; shorten the prompt or lower max_tokens"
            )
            return Fail(name, 400, message, param="max_tokens", code="context_length_exceeded")
        sentence = admit(prompt + answer, self.board.room.get(application, prompt + answer))
        return Fail(name, 400, sentence, param="max_tokens", code="context_length_exceeded") if sentence else None

    def _try(self, record: Record, now: float) -> None:
        """Start an attempt if a route is there."""
        ordinary = not record.suspect or any(not other.suspect for other in self.active.values())
        route = self.board.pick(record, now, ordinary)
        if route is None:
            return
        del self.waiting[record.id]
        record.start(route, now)
        self.board.place(record)
        self._effects.append(Submit(route.home, record.submission(self.address, self.page_size)))

    def _pump(self, now: float) -> None:
        """Start what waits and can start, in the order of arrival within a priority."""
        for record in sorted(self.waiting.values(), key=lambda r: r.key):
            application = record.generation.application
            if application in self.board.withdrawn:
                message = f"model {application!r} is no longer served; choose another one"
                self._fail(record, now, Fail(record.id, 404, message, param="model", code="model_not_found"))
            else:
                self._try(record, now)

    def _requeue(self, record: Record, now: float) -> None:
        """The attempt is lost: wait for a new one, which starts from prompt plus emitted tokens."""
        self.board.remove(record)
        record.wait(now)
        self.waiting[record.id] = record

    def _finish(self, record: Record, now: float, state: str, event: str, reason: str) -> None:
        alone = record.alone or record.id in self.board.held
        self.board.remove(record)
        self.waiting.pop(record.id, None)
        del self.active[record.id]
        record.end(state, now, event, reason=reason)
        self.crowd.pace.ended(now)
        self.past[record.id] = record.view()
        if len(self.past) > KEEP:
            self.past.popitem(last=False)
        self._freed |= alone or bool(self.board.held)

    def _fail(self, record: Record, now: float, failure: Fail) -> None:
        self._effects.append(failure)
        self._finish(record, now, "failed", "failed", failure.message)

    def _end(self, request: str, stop: bool, now: float) -> None:
        record = self.active.get(request)
        if record is None:
            return
        self._cancel(record)
        self._effects.append(Closed(request))
        if stop:
            self._finish(record, now, "finished", "finished", "stop")
        else:
            self._finish(record, now, "cancelled", "cancelled", "the client is gone")

    def _cancel(self, record: Record) -> None:
        """Free what the current attempt holds at its home."""
        if record.state == "running" and record.workers[0] in self.board.up:
            self._effects.append(CancelAt(record.workers[0], (record.id,)))

    def _expire(self, now: float) -> None:
        for record in list(self.waiting.values()):
            application = record.generation.application
            since = max(record.waiting_since, self.board.vanished.get(application, record.arrival))
            if not self.board.routes.get(application) and now - since >= self.worker_wait:
                message = f"no worker could serve model {application!r} for {self.worker_wait:g} seconds; try again"
                self._fail(record, now, _unavailable(record.id, message, 5.0))

    def _abort(self, now: float) -> None:
        for record in list(self.active.values()):
            self._cancel(record)
            self._fail(record, now, _unavailable(record.id, "the server shut down before the answer was complete", 5.0))

    # workers

    def _up(self, worker: str, incarnation: int, now: float) -> None:
        known = self.board.up.get(worker)
        if known is not None and known >= incarnation:
            return
        if known is not None:
            self._down(worker, known, "replaced by a newer incarnation", now)
        self.board.up[worker] = incarnation
        self.ledgers[worker] = Ledger(incarnation)

    def _down(self, worker: str, incarnation: int, cause: str, now: float) -> None:
        if self.board.up.get(worker) != incarnation:
            return  # known, or fenced long ago
        del self.ledgers[worker]
        self.board.lose(worker, now)
        for record in sorted(self.board.on.get(worker, {}).values(), key=lambda r: r.key):
            record.note(now, "worker_died", worker=worker, cause=cause)
            self._lost(record, now)
        self._pump(now)

    def _lost(self, record: Record, now: float) -> None:
        """A worker of the request's route died."""
        record.death()
        self._cancel(record)
        if record.deaths < DEATHS:
            self._requeue(record, now)
            return
        message = f"the request was present when {record.deaths} workers died, the last time alone; it is not tried again"
        self._fail(record, now, Fail(record.id, 500, message, kind="server_error", code="request_kills_workers"))

    def _heard(self, worker: str, incarnation: int, serial: int) -> None:
        ledger = self.ledgers.get(worker)
        if ledger is None or ledger.incarnation != incarnation:
            return
        first = ledger.heard(serial)
        if first is not None:
            self._effects.append(Replay(worker, first))
        self._acknowledge(worker, ledger, heartbeat=True)

    def _acknowledge(self, worker: str, ledger: Ledger, heartbeat: bool = False) -> None:
        serial = ledger.due(heartbeat)
        if serial is not None:
            self._effects.append(Acknowledge(worker, serial))

    # reports

    def _report(self, report: SweepReport, now: float) -> None:
        ledger = self.ledgers.get(report.worker)
        if ledger is None or ledger.incarnation != report.incarnation:
            return  # fenced, or not announced yet: a heartbeat will show what is missing
        if not ledger.take(report.serial):
            first = ledger.missing(report.serial)
            if first is not None:
                self._effects.append(Replay(report.worker, first))
            return
        unwanted = {news.request for news in report.news if not self._heed(news, report.worker, now)}
        if unwanted:  # it works for nobody: the cancellation is on its way, or was lost
            self._effects.append(CancelAt(report.worker, tuple(sorted(unwanted))))
        self._acknowledge(report.worker, ledger)

    def _current(self, request: str, attempt: int) -> Record | None:
        record = self.active.get(request)
        return record if record is not None and record.state == "running" and record.attempt == attempt else None

    def _heed(self, news: GatewayNews, worker: str, now: float) -> bool:
        """Apply one effect of a worker's sweep machine; False where it runs a request that is not at home there."""
        record = self.active.get(news.request)
        if record is None or record.workers[:1] != (worker,):
            return not (isinstance(news, Progressed) or (isinstance(news, TokensEmitted) and not news.finish))
        if isinstance(news, Preempted):
            record.preempted(now)
        elif news.attempt == record.attempt:
            match news:
                case TokensEmitted():
                    self._emitted(record, news, now)
                case Progressed():
                    record.progressed(news.computed, news.cached, now)
                    self.board.recharge(record)
                case PromptScored():
                    complete = record.score(news)
                    if complete is not None:
                        self._effects.append(Deliver(complete))
                case GivenBack():
                    self._given_back(record, news.reason, now)
        return True

    def _emitted(self, record: Record, emitted: TokensEmitted, now: float) -> None:
        record.plan_seen(now)
        if emitted.position > len(record.tokens):
            # Reports come in order, so the home has lost tokens itself: only running it again from ours is exact.
            record.note(now, "gap", expected=len(record.tokens), got=emitted.position)
            self._cancel(record)
            self._requeue(record, now)
            self._try(record, now)
            return
        news = record.extend(emitted, now)
        if news is None:
            return
        self._effects.append(Deliver(news))
        if news.finish:
            self._finish(record, now, "finished", "finished", news.finish)
        else:
            self.board.recharge(record)

    def _given_back(self, record: Record, reason: str, now: float) -> None:
        record.note(now, "returned", reason=reason)
        if reason.startswith("refused"):
            message = reason.partition(": ")[2] or "a worker refused the request"
            self._fail(record, now, Fail(record.id, 400, message, param="max_tokens", code="context_length_exceeded"))
            return
        assert record.route is not None
        record.avoid, record.avoid_until = record.route.id, now + AVOID_SECONDS
        self._freed |= record.alone
        if reason == "host-lost":
            self._lost(record, now)
        else:
            self._requeue(record, now)
        if record.id in self.waiting:
            self._try(record, now)


def _unavailable(request: str, message: str, retry_after: float) -> Fail:
    return Fail(request, 503, message, kind="server_error", code="unavailable", retry_after=retry_after)
