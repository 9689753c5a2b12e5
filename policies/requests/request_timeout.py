"""Request timeout: the limits of a request's total time and of its wait for a worker, and the sentences for its client.

Owns the two limits and the sentences, no request. Running requests are expired by their workers (the deadlines of
``policies/sweep/columns.py``); waiting ones are expired here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Protocol, TypeVar

from .load_failure import LoadFailure
from .queue import WaitingQueue
from .refusal import SHORTER_ANSWER, Refusal, RequestRefused
from .routing_table import RoutingTable

SOON = 1e-3  # seconds: a worker that gets an expired request gives it back at its next plan
RETRY_SECONDS = 5.0  # retry time for clients that wait for another server, or for workers


class LimitedRequest(Protocol):
    """The parts of a request that matter here.

    arrival: seconds, on the clock of ``now``. offline: no client waits for it.
    """

    arrival: float

    @property
    def state(self) -> str: ...

    @property
    def offline(self) -> bool: ...


Limited = TypeVar("Limited", bound=LimitedRequest)


class RequestTimeout:
    """The limits. worker_wait: seconds without any route. timeout: seconds from arrival; 0: no limit."""

    def __init__(self, worker_wait: float, timeout: float) -> None:
        self.worker_wait, self.timeout = worker_wait, timeout

    def left(self, request: LimitedRequest, now: float) -> float:
        """Return the seconds that a request may still take, at least a few; 0: no limit, as for offline ones."""
        return 0.0 if request.offline else self.timeout and max(request.arrival + self.timeout - now, SOON)

    def expired(self) -> RequestRefused:
        """Return the refusal of an expired request."""
        message = f"the request was not complete after {self.timeout:g} seconds (request_timeout)"
        return RequestRefused(Refusal.EXPIRED, message)

    def closing(self) -> RequestRefused:
        """Return the refusal of new requests during shutdown."""
        message = "the server is shutting down; send the request elsewhere or again later"
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def broken_off(self) -> RequestRefused:
        """Return the refusal of requests that are cut off by the shutdown."""
        message = "the server shut down before the answer was complete"
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def crowded(self, model: str) -> RequestRefused:
        """Return the refusal of a request that has waited too long for room."""
        message = (
            f"the request is longer than what loaded models leave of the memory, and for {self.worker_wait:g} seconds too "
            f"many were in use to make room for it beside model {model!r}; try again, or {SHORTER_ANSWER}"
        )
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def waited(self, since: float, now: float) -> bool:
        """Return whether a request has waited too long for any route, or for room on one."""
        return now - since >= self.worker_wait

    def late(self, requests: Iterable[Limited], now: float) -> list[Limited]:
        """Return the waiting requests whose time is over; workers report on the others.

        ``requests``: in order of arrival.
        """
        if not self.timeout:
            return []
        over = takewhile(lambda request: request.arrival + self.timeout <= now, requests)
        return [request for request in over if request.state in ("waiting", "held") and not request.offline]

    def unserved(self, queue: WaitingQueue, table: RoutingTable, now: float) -> Iterator[tuple[str, RequestRefused]]:
        """Yield requests that have waited too long for any route, or whose model cannot be loaded, one after the other.

        Each must be out of the queue before the next is requested. Requests that have waited less are not looked at.
        """
        for application in [name for name in queue.applications() if not table.routes.get(name)]:
            model, vanished = table.model_of(application), table.vanished.get(application, 0.0)
            failure, heard = table.failed.get(application, (None, 0.0))
            while (longest := queue.longest_waiting(application)) is not None:
                request, since = longest
                if failure is not None and (failure.final or heard >= since):
                    yield request, self._unloadable(model, failure)
                elif self.waited(max(since, vanished), now):
                    yield request, self._unserved(model, application, table)
                else:
                    break

    def failed(self, application: str, table: RoutingTable, now: float) -> RequestRefused | None:
        """Return the refusal of a new request whose model has just failed to load, or never can load.

        An instant retry would be in vain.
        """
        failure, heard = table.failed.get(application, (None, 0.0))
        if failure is None or table.routes.get(application) or not (failure.final or now - heard < RETRY_SECONDS):
            return None
        return self._unloadable(table.model_of(application), failure)

    def _unloadable(self, model: str, failure: LoadFailure) -> RequestRefused:
        message = f"model {model!r} cannot be loaded: {failure.why}"
        wait = None if failure.final else RETRY_SECONDS
        return RequestRefused(Refusal.UNAVAILABLE, message, wait, failure=failure.number)

    def _unserved(self, model: str, application: str, table: RoutingTable) -> RequestRefused:
        message = f"no worker could serve model {model!r} for {self.worker_wait:g} seconds; try again"
        if application in table.on_demand and table.alive:
            message = (
                f"model {model!r} is loaded on demand, and for {self.worker_wait:g} seconds there was no room for it beside "
                f"models in use; try again, or give workers more memory"
            )
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)
