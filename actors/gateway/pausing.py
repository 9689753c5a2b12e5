"""Requests that pause: the parameters of their route are dropped, and their KV goes to where layers are computed then.

A request leaves its route at once, and workers keep its pages (``HoldPages``). Those with the shortest stall have theirs
exchanged first, as many at a time as there is room for (``policies/overload/exchange_order.py``); then the attempt on the
new route begins, or without them, where a copy fails, comes late, or finds no room for too long. Owns that order; what
happens to a request is done by ``moving.py`` and ``state.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from ...policies.model.chain import Route
from ...policies.model.lineage import page_hashes
from ...policies.overload.exchange_order import ExchangeOrder, StaleSequence
from ...policies.requests.dispatch import workers_of
from ...policies.requests.moving import KEPT, stuck
from ...policies.sweep.page_events import HoldPages, PageTarget, Unhold
from .messages import HoldAnswered, HoldAt, Move, UnholdAt
from .move_under_way import MovedParts, MoveUnderWay, places

ROOM = 1 << 40  # pages of a worker that has not said that it is full


class Copier(Protocol):
    """What is needed of ``Moving``."""

    moves: dict[str, MoveUnderWay]

    def targets(self, source: Route, target: Route) -> Mapping[str, list[PageTarget]]: ...

    def page_bytes(self, route: Route, to: PageTarget) -> int: ...

    def export(self, under: MoveUnderWay) -> None: ...

    def hand_over(self, under: MoveUnderWay, now: float) -> None: ...

    def hand_over_without_pages(self, under: MoveUnderWay, now: float) -> None: ...


class Pausing:
    """See the module."""

    def __init__(self, state: MovedParts, copier: Copier) -> None:
        self._state, self._copier = state, copier
        self._order = ExchangeOrder(lambda source, target: 1.0)  # links are alike, as far as is known
        self._crowded: set[str] = set()  # workers that have no room, until something has moved, or time passed
        self._stirred = 0.0  # when something moved last
        self.leaving: dict[str, int] = {}  # request -> the attempt to come: the old one is not known to be over

    def begin(self, move: Move, now: float, switch: int) -> None:
        """A request leaves its route now."""
        state, record = self._state, self._state.active[move.request]
        assert record.route is not None, "who runs has a route"
        under = self._copier.moves[record.id] = MoveUnderWay(move, record.route, now, switch=switch)
        event = "paused" if record.reached else "rerouted"
        source, target = places(record.route), places(move.route)
        record.note(now, event, source=source, target=target, reason="parameters were dropped")
        under.reached, under.left = record.reached, now
        under.submit = state.relocate(record, move.route, now, cancel=False)
        self.leaving[record.id] = record.attempt
        self._stirred = now
        self._hold(under, under.source, workers_of(under.source)[::-1], expects=False)  # who knows of the others last

    def _hold(self, under: MoveUnderWay, route: Route, workers: Iterable[str], *, expects: bool) -> None:
        """Workers of a route keep its pages."""
        state, record, pages = self._state, self._state.active[under.move.request], under.move.told.pages
        hashes = page_hashes(record.tokens[: pages * state.page_size], state.page_size, record.generation.salt)
        hold = HoldPages(
            state.address, record.id, under.move.attempt, route.id, record.account, record.generation.priority,
            record.arrival, hashes, KEPT, expects,
        )  # fmt: skip
        state.say(HoldAt(record.id, record.attempt, [(worker, hold) for worker in workers]))

    def answered(self, event: HoldAnswered, now: float) -> None:
        """Have its pages moved, or their room made, now that workers keep its pages, or expect them."""
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

    def _sequence(self, under: MoveUnderWay) -> StaleSequence:
        """What of it is to move."""
        sizes: dict[tuple[str, str], int] = {}
        pages = under.move.told.pages
        for worker, targets in self._copier.targets(under.source, under.move.route).items() if pages else ():
            for to in targets:
                link = worker, to.worker
                sizes[link] = sizes.get(link, 0) + pages * self._copier.page_bytes(under.move.route, to)
        return StaleSequence(under.move.request, sizes, {there: pages for _, there in sizes})

    def _next(self) -> None:
        """Have room made for those whose turn it is."""
        free = {worker: 0 if worker in self._crowded else ROOM for worker in self._state.table.alive}
        for sequence in self._order.next(free):
            under = self._copier.moves[sequence.request]
            self._hold(under, under.move.route, sorted(sequence.pages), expects=True)

    def moved(self, under: MoveUnderWay, now: float) -> None:
        """Its attempt on the new route begins: with its pages, or without."""
        assert under.submit is not None, "who does not pause begins in another way"
        record = self._state.active[under.move.request]
        timeout = self._state.timeouts.left(record, now)
        self._unhold(under, {*workers_of(under.source)} - {*workers_of(under.move.route)})
        self._state.say(replace(under.submit, submission=replace(under.submit.submission, timeout=timeout)))
        self._gone(under.move.request, now)
        self._next()

    def over(self, under: MoveUnderWay) -> None:
        """It has ended, or begins anew for another reason."""
        if under.left is not None and under.submit is not None:
            self._order.done(under.move.request)
            self._unhold(under, {*workers_of(under.source), *workers_of(under.move.route)})

    def _gone(self, request: str, now: float) -> None:
        self._order.done(request)
        self._crowded.clear()
        self._stirred = now

    def _unhold(self, under: MoveUnderWay, workers: set[str]) -> None:
        if living := tuple(sorted(workers & self._state.table.alive)):
            self._state.say(UnholdAt(living, Unhold(under.move.request, under.move.attempt)))

    def _compute(self, request: str, why: str, now: float) -> None:
        """It begins without its pages, and whoever waits has the memory that they took."""
        under = self._copier.moves[request]
        under.reasons.append(why)
        self._unhold(under, {*workers_of(under.source), *workers_of(under.move.route)})
        self._copier.hand_over_without_pages(under, now)

    def lost(self, worker: str, now: float) -> None:
        """A worker died: what was to come from it does not come. Whose new route it was on begins anew anyhow."""
        for sequence in self._order.lost(worker):
            under = self._copier.moves[sequence.request]
            if under.pauses and worker not in workers_of(under.move.route):
                self._compute(sequence.request, f"worker {worker} died", now)

    def look(self, now: float) -> None:
        """Time has passed: there may be room where there was none; else one of them makes it."""
        self._crowded.clear()
        if self._order.left and not self._order.moving and stuck(self._stirred, now):
            sequence = self._order.stuck()
            assert sequence is not None, "somebody waits, and nobody moves"
            self._compute(sequence.request, "there was no room for its pages", now)
        self._next()

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken."""
        moves = self._copier.moves
        for request in self._order.requests:
            assert request in moves, f"request {request} has its turn, and does not move"
            assert moves[request].pauses, f"request {request} has its turn, and does not pause"
