"""Requests that move from one route to another while they run.

While its pages are copied a request goes on where it is; then a new attempt with all of its tokens begins at the new home,
finds them there, and computes what is lacking. One that has not decoded yet begins there at once, from the front, while its
pages come from the back. Whatever becomes of the copy, the attempt is what counts: nothing is lost, and no death is counted.
Owns the moves under way; what a move does to a request is done by ``state.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from blockwright.actors.gateway.messages import ExportAt, Move, Vacate
from blockwright.actors.gateway.port import MoveBegun, MoveFigures
from blockwright.actors.gateway.record import RequestRecord
from blockwright.policies.model.chain import Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.requests.dispatch import workers_of
from blockwright.policies.requests.moving import Unmovable, destination, page_targets
from blockwright.policies.requests.poison import Quarantine
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.requests.routing_table import RoutingTable
from blockwright.policies.sweep.events import Progressed
from blockwright.policies.sweep.page_events import Export, Exported, PageTarget

PATIENCE = 30.0  # seconds that a copy may take; then the request moves with what is there
ROUNDS = 2  # of copying: what became full meanwhile goes in the last


@dataclass(slots=True)
class MoveUnderWay:
    """A request whose pages are copied, or that has not said its first word on its new route."""

    move: Move
    source: Route
    since: float
    sent: int = 0  # pages of which copies were asked for
    rounds: int = 0
    waiting: dict[str, int] = field(default_factory=dict)  # worker -> number of the export that it has not answered
    pages: int = 0  # copied on all of its workers, in the rounds that are over
    least: int | None = None  # of those that have answered in this round
    nbytes: int = 0
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    handed_over: float | None = None  # when the attempt on the new route began
    tokens: int = 0  # it had then
    cached: int = 0  # of these, found there


class MovedParts(Protocol):
    """What is needed of ``GatewayState``."""

    address: str
    page_size: int
    table: RoutingTable
    quarantine: Quarantine
    active: dict[str, RequestRecord]

    def say(self, effect: ExportAt) -> None: ...

    def relocate(self, record: RequestRecord, route: Route, now: float) -> None: ...


class Moving:
    """See the module. ``state``: whose requests they are."""

    def __init__(self, state: MovedParts) -> None:
        self._state = state
        self._moves: dict[str, MoveUnderWay] = {}  # by request
        self._number = 0  # of the last export
        self.figures = MoveFigures()

    def plan(self, request: str, worker: str, route: str, now: float) -> Move:
        """Where a running request would go. Raises RequestRefused where it cannot be moved there."""
        state, record = self._state, self._state.active[request]
        if request in self._moves:
            where = self._moves[request].move.route.home
            raise RequestRefused(Refusal.CONFLICT, f"request {request!r} is moving to worker {where} already", param="id")
        if record.route is None or not record.workers:
            message = f"request {request!r} waits for a worker: there is nothing to move yet"
            raise RequestRefused(Refusal.CONFLICT, message, param="id")
        wanted, work = record.wanted(now), self._work()
        found = destination(wanted, record.route, state.table, state.quarantine, work, worker=worker, route=route)
        if isinstance(found, Unmovable):
            message = f"request {request!r} cannot be moved: {found.message}"
            raise RequestRefused(Refusal.CONFLICT, message, param=found.param or "id")
        pages = self._full(record)
        sizes = [c.kv.raw_bytes for c in state.table.chains[found.application].components if c.kv is not None]
        nbytes = pages * sum(
            sum(sizes[to.first : to.end]) for targets in self._targets(record.route, found).values() for to in targets
        )
        return Move(
            request, record.attempt, found, MoveBegun(request, record.route.home, found.home, found.id, pages, nbytes)
        )

    def handle(self, event: Move | Vacate, now: float) -> None:
        """One request is to move, or all that are at a worker."""
        if isinstance(event, Move):
            self._begin(event, now)
            return
        active = self._state.active
        for record in sorted((active[id] for id in self._state.table.on.get(event.worker, ())), key=lambda r: r.key):
            try:
                self._begin(self.plan(record.id, "", "", now), now)
            except RequestRefused as refused:  # it moves already, or must wait until it is given back
                record.note(now, "not_moved", reason=refused.message)

    def _begin(self, move: Move, now: float) -> None:
        """Have pages copied while the request goes on; without any, or before it decodes, it moves now."""
        record = self._state.active[move.request]
        assert record.route is not None, "who runs has a route"
        under = self._moves[move.request] = MoveUnderWay(move, record.route, now)
        record.note(now, "moving", source=move.told.source, target=move.told.target, pages=move.told.pages)
        decoding = record.planned and record.computed >= len(record.tokens) - 1
        self._export(under, record)
        if not under.waiting or not decoding:
            self._hand_over(under, now)

    def _work(self) -> dict[str, int]:
        """Tokens outstanding on each worker once all that move are there."""
        work = self._state.table.work.copy()
        for request, under in self._moves.items():
            if under.handed_over is None:
                for name in workers_of(under.move.route):
                    work[name] = work.get(name, 0) + self._state.active[request].counted
        return work

    def _full(self, record: RequestRecord) -> int:
        """Its pages that are full, and have KV."""
        return min(record.computed, len(record.tokens) - 1) // self._state.page_size

    def _targets(self, source: Route, target: Route) -> Mapping[str, list[PageTarget]]:
        table = self._state.table
        found = page_targets(table.chains[target.application].components, source, target)
        return {worker: [PageTarget(*layers) for layers in to] for worker, to in found.items() if worker in table.alive}

    def _export(self, under: MoveUnderWay, record: RequestRecord) -> None:
        """Ask for copies of the pages that are full and were not asked for."""
        state, size, full = self._state, self._state.page_size, self._full(record)
        if full <= under.sent:
            return
        hashes = page_hashes(record.tokens[: full * size], size, record.generation.salt)
        for worker, to in self._targets(under.source, under.move.route).items():
            self._number += 1
            under.waiting[worker] = self._number
            wanted = Export(
                gateway=state.address, request=record.id, attempt=under.move.attempt, number=self._number,
                route=under.source.id, account=record.account, hashes=hashes, since=under.sent, to=to,
            )  # fmt: skip
            state.say(ExportAt(worker, wanted))
        under.sent, under.rounds = full, under.rounds + 1

    def exported(self, news: Exported, worker: str, now: float) -> None:
        """A worker of the old route has sent what it could."""
        under = self._moves.get(news.request)
        if under is None or under.waiting.get(worker) != news.number:
            return
        del under.waiting[worker]
        under.least = news.pages if under.least is None else min(under.least, news.pages)
        under.nbytes += news.nbytes
        under.refused += news.refused
        if news.reason:
            under.reasons.append(news.reason)
        if under.waiting:
            return
        under.pages, under.least = under.pages + under.least, None
        if under.handed_over is not None:
            return
        if under.rounds < ROUNDS and not news.reason and not news.refused:
            self._export(under, self._state.active[news.request])
        if not under.waiting:
            self._hand_over(under, now)

    def _hand_over(self, under: MoveUnderWay, now: float) -> None:
        """The new attempt begins, unless its route is gone."""
        state, move = self._state, under.move
        record = state.active[move.request]
        routes = state.table.routes.get(move.route.application, [])
        route = next((one for one in routes if one.id == move.route.id), None)
        if route is None:
            self._give_up(under, f"route {move.route.id} is gone", now)
            return
        under.handed_over, under.tokens = now, len(record.tokens)
        state.relocate(record, route, now)

    def _give_up(self, under: MoveUnderWay, why: str, now: float) -> None:
        del self._moves[under.move.request]
        self.figures.outcomes["abandoned"] += 1
        self._state.active[under.move.request].note(now, "not_moved", reason=why)

    def progressed(self, news: Progressed) -> None:
        """A home has found so many tokens of an attempt in its cache."""
        under = self._moves.get(news.request)
        if under is not None and news.attempt == under.move.attempt + 1:
            under.cached = max(under.cached, news.cached)

    def resumed(self, record: RequestRecord, now: float) -> None:
        """A token came. The first one on the new route ends the move."""
        under = self._moves.get(record.id)
        if under is None or under.handed_over is None:
            return
        del self._moves[record.id]
        self.figures.outcomes["copied" if under.cached else "recomputed"] += 1
        assert record.route is not None, "who runs has a route"
        why = {"reason": "; ".join(under.reasons)} if under.reasons else {}
        record.note(
            now, "moved", source=under.source.home, target=record.route.home, pages=under.pages, bytes=under.nbytes,
            recomputed=under.tokens - under.cached, paused=now - under.handed_over, **why,
        )  # fmt: skip

    def left(self, record: RequestRecord) -> None:
        """The attempt is over for another reason, or the request is: so is its move."""
        under = self._moves.pop(record.id, None)
        if under is not None:
            self.figures.outcomes["abandoned"] += 1

    def lost(self, worker: str, now: float) -> None:
        """A worker died. What was to go there stays where it is; what it was asked for will not come."""
        for under in list(self._moves.values()):
            if under.handed_over is None and worker in workers_of(under.move.route):
                self._give_up(under, f"worker {worker} died", now)

    def look(self, now: float) -> None:
        """Copies that take too long are not waited for."""
        for under in list(self._moves.values()):
            if under.handed_over is None and now - under.since > PATIENCE:
                under.reasons.append(f"copying took longer than {PATIENCE:g} s")
                self._hand_over(under, now)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        for request, under in self._moves.items():
            record = self._state.active[request]
            expected = under.move.attempt + (under.handed_over is not None)
            assert record.attempt == expected, f"request {request} moves in another attempt"
            assert record.workers, f"request {request} moves and is nowhere"
