"""Requests that move from one route to another while they run.

While its pages are copied a request runs on where it is. Then a new attempt with all of its tokens begins at the new home,
finds the pages there, and computes the rest. A request that is not decoding yet begins there at once: it prefills from the
front, while its pages arrive from the back. Whatever happens to the copy, the attempt is what counts: nothing is lost, and
no death is counted. Owns the moves in flight; ``state.py`` applies a move to a request.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...control.route_switch import SwitchRoutes
from ...model.chain import Route
from ...model.lineage import page_hashes
from ...sweep.events import Progressed
from ...sweep.page_events import Export, Exported, PageTarget
from ..dispatch import workers_of
from ..moving import PATIENCE, Unmovable, begins_there, copies_again, destination, overdue, page_targets
from ..rebalancing import QueuedRequest, rebalanced
from ..refusal import Refusal, RequestRefused
from .messages import ExportAt, ExportUnsent, HoldAnswered, Move, Vacate
from .move_in_progress import MovedParts, MoveInProgress, places
from .record import RequestRecord
from .request_pauses import RequestPauses
from .route_switches import RouteSwitches
from .values import MoveBegun, MoveFigures


class RequestMoves:
    """The in-flight moves of one gateway (see the module). ``state``: the owner of the requests."""

    def __init__(self, state: MovedParts) -> None:
        self._state = state
        self.moves: dict[str, MoveInProgress] = {}  # by request
        self._number = 0  # number of the last export
        self.figures = MoveFigures()
        self.pausing = RequestPauses(state, self)  # requests that have left and wait for their pages
        self.switching = RouteSwitches(state, self, self.pausing)

    def plan(self, request: str, worker: str, route: str, now: float) -> Move:
        """Return the move of a running request. Raises RequestRefused if it cannot move there."""
        state, record = self._state, self._state.active[request]
        if request in self.moves:
            where = self.moves[request].move.route.home
            raise RequestRefused(Refusal.CONFLICT, f"request {request!r} is moving to worker {where} already", param="id")
        if record.route is None or not record.workers:
            message = f"request {request!r} waits for a worker: there is nothing to move yet"
            raise RequestRefused(Refusal.CONFLICT, message, param="id")
        wanted, work = record.wanted(now), self._work()
        found = destination(wanted, record.route, state.table, state.quarantine, work, worker=worker, route=route)
        if isinstance(found, Unmovable):
            message = f"request {request!r} cannot be moved: {found.message}"
            raise RequestRefused(Refusal.CONFLICT, message, param=found.param or "id")
        return self.to(record, found)

    def to(self, record: RequestRecord, found: Route) -> Move:
        """Return the move of a request to a route."""
        assert record.route is not None, "who runs has a route"
        pages = self._full(record)
        targets = self.targets(record.route, found)
        nbytes = pages * sum(self.page_bytes(found, to) for wanted in targets.values() for to in wanted)
        begun = MoveBegun(record.id, record.route.home, found.home, found.id, pages, nbytes)
        return Move(record.id, record.attempt, found, begun)

    def handle(self, event: Move | Vacate | SwitchRoutes | ExportUnsent | HoldAnswered, now: float) -> None:
        """Apply an event about moves: one request moves, all on a worker or on ending routes move, or a move cannot
        proceed.
        """
        match event:
            case Move():
                self.begin(event, now)
            case Vacate(worker):
                self._vacate(worker, now)
            case SwitchRoutes():
                self.switching.begin(event, now)
            case ExportUnsent(worker, news):
                self.exported(news, worker, now)
            case HoldAnswered():
                self.pausing.answered(event, now)

    def _vacate(self, worker: str, now: float) -> None:
        active = self._state.active
        for record in sorted((active[id] for id in self._state.table.on.get(worker, ())), key=lambda r: r.key):
            under = self.moves.get(record.id)
            if under is not None and worker not in workers_of(under.move.route):
                continue  # it is leaving already
            if under is not None and not under.pauses:
                self.left(record)  # cancel its move to this worker; it continues where it is
            try:
                self.begin(self.plan(record.id, "", "", now), now)
            except RequestRefused as refused:  # it is moving already, or must wait until it is given back
                record.note(now, "not_moved", reason=refused.message)

    def rebalance(self, now: float) -> None:
        """Reroute requests that no worker has begun to a newly opened route with less work ahead of them."""
        state, table = self._state, self._state.table
        opened = {name for name in table.opened if len(table.routes.get(name, ())) > 1}
        table.opened.clear()
        if not opened:
            return
        here = [record for record in state.active.values() if record.application in opened and self._unbegun(record)]
        here.sort(key=lambda record: record.key)
        waiting = [
            QueuedRequest(record.wanted(now), record.route, record.counted) for record in here if record.route is not None
        ]
        for request, route in rebalanced(waiting, table, state.quarantine).items():
            record = state.active[request]
            assert record.route is not None, "who waits at a worker has a route"
            ends = {"source": places(record.route), "target": places(route)}
            record.note(now, "rerouted", **ends, reason="another worker serves, with less to do")
            state.emit(state.relocate(record, route, now, cancel=True))

    def _unbegun(self, record: RequestRecord) -> bool:
        """Return whether it waits at a worker, as far as is known here.

        Suspects and offline requests have their own rules.
        """
        waits = bool(record.workers) and (record.requeued or not record.planned)
        return waits and not (record.alone or record.offline or record.id in self.moves)

    def begin(self, move: Move, now: float, switch: int = 0) -> None:
        """Start copying pages while the request runs on. Without pages, or before it decodes, it moves now."""
        record = self._state.active[move.request]
        assert record.route is not None, "who runs has a route"
        under = self.moves[move.request] = MoveInProgress(move, record.route, now, switch=switch)
        record.note(now, "moving", source=places(record.route), target=places(move.route), pages=move.begun.pages)
        self.export(under)
        if begins_there(copying=bool(under.waiting), decodes=record.decodes):
            self.hand_over(under, now)

    def _work(self) -> dict[str, int]:
        """Return the outstanding tokens of each worker as if all moves in flight were done."""
        work = self._state.table.work.copy()
        for request, under in self.moves.items():
            if under.left is None:
                for name in workers_of(under.move.route):
                    work[name] = work.get(name, 0) + self._state.active[request].counted
        return work

    def _full(self, record: RequestRecord) -> int:
        """Return the number of its full pages that have KV."""
        return min(record.reached, len(record.tokens) - 1) // self._state.page_size

    def targets(self, source: Route, target: Route) -> Mapping[str, list[PageTarget]]:
        """Return, for each live worker, the layers it sends to each target. Empty for an application no longer served."""
        table = self._state.table
        chain = table.chains.get(target.application)
        found = page_targets(chain.components, source, target) if chain is not None else {}
        return {worker: [PageTarget(*layers) for layers in to] for worker, to in found.items() if worker in table.alive}

    def page_bytes(self, route: Route, to: PageTarget) -> int:
        """Return the bytes of one page's layers that go to one worker."""
        layouts = [c.kv for c in self._state.table.chains[route.application].components if c.kv is not None]
        return sum(layout.raw_bytes for layout in layouts[to.first : to.end])

    def export(self, under: MoveInProgress) -> None:
        """Ask for copies of the full pages that were not requested yet."""
        state = self._state
        size = self._state.page_size
        record = self._state.active[under.move.request]
        full = under.move.begun.pages if under.pauses else self._full(record)
        if full <= under.sent:
            return
        hashes = page_hashes(record.tokens[: full * size], size, record.generation.salt)
        for worker, to in self.targets(under.source, under.move.route).items():
            self._number += 1
            under.waiting[worker] = self._number
            wanted = Export(
                gateway=state.address, request=record.id, attempt=under.move.attempt, number=self._number,
                route=under.source.id, account=record.account, hashes=hashes, since=under.sent, to=to,
            )  # fmt: skip
            state.emit(ExportAt(worker, wanted))
        under.sent, under.rounds = full, under.rounds + 1

    def exported(self, news: Exported, worker: str, now: float) -> None:
        """Take a worker's answer: it has sent the pages that it could."""
        under = self.moves.get(news.request)
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
        if copies_again(under.rounds, failed=bool(news.reason or news.refused)):
            self.export(under)
        if begins_there(copying=bool(under.waiting), decodes=True):
            self.hand_over(under, now)

    def hand_over(self, under: MoveInProgress, now: float) -> None:
        """Start the attempt on the new route, unless that route is gone."""
        state, move = self._state, under.move
        record = state.active[move.request]
        routes = state.table.routes.get(move.route.application, [])
        route = next((one for one in routes if one.id == move.route.id), None)
        if route is None:
            self._give_up(under, f"route {move.route.id} is gone", now)
        elif under.submit is not None:
            under.handed_over = now
            self.pausing.moved(under, now)
        else:
            under.left = under.handed_over = now
            under.reached = record.reached
            state.emit(state.relocate(record, route, now, cancel=True))

    def hand_over_without_pages(self, under: MoveInProgress, now: float) -> None:
        """Start the attempt on the new route without pages, as soon as there is memory for it.

        The request is computed again. The switch no longer waits for it.
        """
        self.hand_over(under, now)
        self.switching.ready(under, now)

    def _give_up(self, under: MoveInProgress, why: str, now: float) -> None:
        record = self._state.active[under.move.request]
        record.note(now, "not_moved", reason=why)
        if under.pauses:
            self._state.restart(record, now)
        else:
            self.left(record)

    def progressed(self, news: Progressed, now: float) -> None:
        """Note that a home has planned the new attempt, or found tokens of it in its prefix cache."""
        under = self.moves.get(news.request)
        if under is not None and news.attempt == under.move.attempt + 1:
            under.cached = max(under.cached, news.cached)
            self.switching.ready(under, now)

    def resumed(self, record: RequestRecord, now: float) -> None:
        """Note a token. The first one on the new route ends the move."""
        under = self.moves.get(record.id)
        if under is None or under.left is None or under.handed_over is None:
            return
        del self.moves[record.id]
        self.switching.ready(under, now)
        self.figures.outcomes["copied" if under.cached else "recomputed"] += 1
        assert record.route is not None, "who runs has a route"
        why = {"reason": "; ".join(under.reasons)} if under.reasons else {}
        record.note(
            now, "moved", source=places(under.source), target=places(record.route), pages=under.pages, bytes=under.nbytes,
            recomputed=under.recomputed, paused=now - under.left if under.reached else 0.0, **why,
        )  # fmt: skip

    def left(self, record: RequestRecord) -> None:
        """Abandon the move of a request whose attempt, or which itself, ended for another reason."""
        under = self.moves.pop(record.id, None)
        if under is not None:
            self.switching.over(under)
            self.pausing.over(under)
            self.figures.outcomes["abandoned"] += 1

    def lost(self, worker: str, now: float) -> None:
        """Handle the death of a worker: moves to it are given up, and exports that it owed will not come."""
        for under in list(self.moves.values()):
            if under.left is None and worker in workers_of(under.move.route):
                self._give_up(under, f"worker {worker} died", now)
        self.pausing.lost(worker, now)

    def tick(self, now: float) -> None:
        """Check timeouts: a copy that takes too long is not waited for."""
        for under in list(self.moves.values()):
            if under.handed_over is None and overdue(under.since, now):
                under.reasons.append(f"copying took longer than {PATIENCE:g} s")
                self.hand_over(under, now)
        self.switching.tick(now)
        self.pausing.tick(now)

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        self.switching.check(self.moves)
        self.pausing.check()
        for request, under in self.moves.items():
            record = self._state.active[request]
            expected = under.move.attempt + (under.left is not None)
            assert record.attempt == expected, f"request {request} moves in another attempt"
            assert record.workers, f"request {request} moves and is nowhere"
