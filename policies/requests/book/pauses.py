"""The paused requests of one gateway: the order in which their pages move, and the workers without room for them."""

from __future__ import annotations

from collections.abc import Mapping

from ...overload.exchange_order import ExchangeOrder
from .route_claims import RouteClaim

ROOM = 1 << 40  # pages assumed free on a worker that has not reported being full


class Pauses:
    """The paused requests (see the module). Owns their order; ``pausing.py`` carries it out."""

    def __init__(self) -> None:
        self.order = ExchangeOrder(lambda source, target: 1.0)  # all links count as equally fast
        self.leaving: dict[str, int] = {}  # request -> its next attempt; the old one is not known to be over
        self.stirred = 0.0  # time of the last move
        self._crowded: set[str] = set()  # workers without room, until something moves or time passes

    def leave(self, request: str, attempt: int, now: float) -> None:
        """Note that a request has left its route, for an attempt on another one."""
        self.leaving[request] = attempt
        self.stirred = now

    def left(self, request: str, attempt: int) -> None:
        """Note that its workers have ended its former attempt."""
        if self.leaving.get(request) == attempt:  # room is asked for only later
            del self.leaving[request]

    def crowd(self, workers: Mapping[str, int]) -> None:
        """Note workers without room."""
        self._crowded.update(workers)

    def gone(self, request: str, now: float) -> None:
        """Note that a request has begun on its new route, so that there may be room."""
        self.order.done(request)
        self._crowded.clear()
        self.stirred = now

    def time_passes(self) -> None:
        """Forget which workers lack room: it may have come."""
        self._crowded.clear()

    def room(self, alive: set[str]) -> dict[str, int]:
        """Return the pages free on each worker, as far as is known."""
        return {worker: 0 if worker in self._crowded else ROOM for worker in alive}

    def check(self, claims: Mapping[str, RouteClaim]) -> None:
        """Raise AssertionError when an invariant is broken."""
        for request in self.order.requests:
            assert request in claims, f"request {request} has its turn, and does not move"
            assert claims[request].pauses, f"request {request} has its turn, and does not pause"
