"""Paused requests: the parameters of their route are dropped, and their KV moves to the next route's workers.

A request leaves its route at once, and workers keep its pages (``HoldPages``). Requests with the shortest stall exchange
their pages first, as many at a time as there is room for (``policies/overload/exchange_order.py``). Then the attempt on
the new route begins. It begins without pages if a copy fails, comes late, or finds no room for too long. Owns that order;
``request_moves.py`` and ``state.py`` apply it to a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from ...model.chain import Route
from ...model.lineage import page_hashes
from ...overload.exchange_order import ExchangeOrder, StaleSequence
from ...sweep.page_events import HoldPages, PageTarget, Unhold
from ..dispatch import workers_of
from ..moving import KEPT, stuck
from .messages import HoldAnswered, HoldAt, Move, UnholdAt
from .move_in_progress import MovedParts, MoveInProgress, places

ROOM = 1 << 40  # pages assumed free on a worker that has not reported being full


class Copier(Protocol):
    """The parts of ``RequestMoves`` that pauses need."""

    moves: dict[str, MoveInProgress]

    def targets(self, source: Route, target: Route) -> Mapping[str, list[PageTarget]]: ...

    def page_bytes(self, route: Route, to: PageTarget) -> int: ...

    def export(self, under: MoveInProgress) -> None: ...

    def hand_over(self, under: MoveInProgress, now: float) -> None: ...

    def hand_over_without_pages(self, under: MoveInProgress, now: float) -> None: ...


class RequestPauses:
    """The paused requests of one gateway (see the module)."""

    def __init__(self, state: MovedParts, copier: Copier) -> None:
        self._state, self._copier = state, copier
        self._order = ExchangeOrder(lambda source, target: 1.0)  # all links count as equally fast
        self._crowded: set[str] = set()  # workers without room, until something moves or time passes
        self._stirred = 0.0  # time of the last move
        self.leaving: dict[str, int] = {}  # request -> its next attempt; the old one is not known to be over

    def begin(self, move: Move, now: float, switch: int) -> None:
        """Take a request off its route now."""
        state, record = self._state, self._state.active[move.request]
        assert record.route is not None, "who runs has a route"
        under = self._copier.moves[record.id] = MoveInProgress(move, record.route, now, switch=switch)
        event = "paused" if record.reached else "rerouted"
        source, target = places(record.route), places(move.route)
        record.note(now, event, source=source, target=target, reason="parameters were dropped")
        under.reached, under.left = record.reached, now
        under.submit = state.relocate(record, move.route, now, cancel=False)
        self.leaving[record.id] = record.attempt
        self._stirred = now
        self._hold(under, under.source, workers_of(under.source)[::-1], expects=False)  # home last: it knows the others

    def _hold(self, under: MoveInProgress, route: Route, workers: Iterable[str], *, expects: bool) -> None:
        """Ask workers of a route to keep the request's pages."""
        state = self._state
        record = self._state.active[under.move.request]
        pages = under.move.begun.pages
        hashes = page_hashes(record.tokens[: pages * state.page_size], state.page_size, record.generation.salt)
        hold = HoldPages(
            state.address, record.id, under.move.attempt, route.id, record.account, record.generation.priority,
            record.arrival, hashes, KEPT, expects,
        )  # fmt: skip
        state.emit(HoldAt(record.id, record.attempt, [(worker, hold) for worker in workers]))

    def answered(self, event: HoldAnswered, now: float) -> None:
        """Handle the answer of workers that keep the pages, or expect them."""
        if self.leaving.get(event.request) == event.attempt:  # room is asked for only later
            del self.leaving[event.request]
        under = self._copier.moves.get(event.request)
        if under is None or not under.pauses or under.move.attempt + 1 != event.attempt:
            return
        sequence = self._sequence(under)
        if not sequence.transfers:
            self._copier.hand_over(under, now)
        elif not event.expects:
            self._order.add(sequence)
        elif event.room:
            self._stirred = now
            self._copier.export(under)
        elif event.request in self._order.moving:
            self._order.done(event.request)
            self._order.add(sequence)
            self._crowded.update(sequence.pages)
        self._next()

    def _sequence(self, under: MoveInProgress) -> StaleSequence:
        """Return the KV that a request still has to move."""
        sizes: dict[tuple[str, str], int] = {}
        pages = under.move.begun.pages
        for worker, targets in self._copier.targets(under.source, under.move.route).items() if pages else ():
            for to in targets:
                link = worker, to.worker
                sizes[link] = sizes.get(link, 0) + pages * self._copier.page_bytes(under.move.route, to)
        return StaleSequence(under.move.request, sizes, {there: pages for _, there in sizes})

    def _next(self) -> None:
        """Ask for memory for the requests whose turn it is."""
        free = {worker: 0 if worker in self._crowded else ROOM for worker in self._state.table.alive}
        for sequence in self._order.next(free):
            under = self._copier.moves[sequence.request]
            self._hold(under, under.move.route, sorted(sequence.pages), expects=True)

    def moved(self, under: MoveInProgress, now: float) -> None:
        """Start the attempt on the new route, with its pages or without."""
        assert under.submit is not None, "who does not pause begins in another way"
        record = self._state.active[under.move.request]
        left, waited = self._state.timeouts.left(record, now), record.waiting_time(now)
        self._unhold(under, {*workers_of(under.source)} - {*workers_of(under.move.route)})
        self._state.emit(replace(under.submit, submission=replace(under.submit.submission, timeout=left, waited=waited)))
        self._gone(under.move.request, now)
        self._next()

    def over(self, under: MoveInProgress) -> None:
        """Forget a request that has ended, or that begins anew for another reason."""
        if under.left is not None and under.submit is not None:
            self._order.done(under.move.request)
            self._unhold(under, {*workers_of(under.source), *workers_of(under.move.route)})

    def _gone(self, request: str, now: float) -> None:
        self._order.done(request)
        self._crowded.clear()
        self._stirred = now

    def _unhold(self, under: MoveInProgress, workers: set[str]) -> None:
        if living := tuple(sorted(workers & self._state.table.alive)):
            self._state.emit(UnholdAt(living, Unhold(under.move.request, under.move.attempt)))

    def _compute(self, request: str, why: str, now: float) -> None:
        """Start a request without its pages. The memory that they took goes to waiting requests."""
        under = self._copier.moves[request]
        under.reasons.append(why)
        self._unhold(under, {*workers_of(under.source), *workers_of(under.move.route)})
        self._copier.hand_over_without_pages(under, now)

    def lost(self, worker: str, now: float) -> None:
        """Handle the death of a worker: pages from it will not come.

        A request whose new route includes the worker begins anew anyway.
        """
        for sequence in self._order.lost(worker):
            under = self._copier.moves[sequence.request]
            if under.pauses and worker not in workers_of(under.move.route):
                self._compute(sequence.request, f"worker {worker} died", now)

    def tick(self, now: float) -> None:
        """Check for room that has come; where all wait for one another's memory, recompute one request to free some."""
        self._crowded.clear()
        if self._order.left and not self._order.moving and stuck(self._stirred, now):
            sequence = self._order.stuck()
            assert sequence is not None, "a request waits, and none moves"
            self._compute(sequence.request, "there was no room for its pages", now)
        self._next()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        moves = self._copier.moves
        for request in self._order.requests:
            assert request in moves, f"request {request} has its turn, and does not move"
            assert moves[request].pauses, f"request {request} has its turn, and does not pause"
