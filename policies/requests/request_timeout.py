"""Request timeout: how long a request may take, how long it waits while no worker can serve it, and what its client is told.

Owns the two limits and the sentences, no request. Of requests that run their workers say that the time is over (the
deadlines of ``policies/sweep/columns.py``); here are those that wait for a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Protocol, TypeVar

from .load_failure import LoadFailure
from .queue import WaitingQueue
from .refusal import Refusal, RequestRefused
from .routing_table import RoutingTable

SOON = 1e-3  # seconds: a worker that gets an expired request gives it back at its next plan
RETRY_SECONDS = 5.0  # what a client is told to wait for another server, or for workers


class LimitedRequest(Protocol):
    """What is needed of a request. ``arrival``: seconds, on the clock of ``now``; ``offline``: nobody waits for it."""

    state: str
    arrival: float

    @property
    def offline(self) -> bool: ...


Limited = TypeVar("Limited", bound=LimitedRequest)


class RequestTimeout:
    """``worker_wait``: seconds without any route; ``timeout``: seconds from arrival, 0: no limit."""

    def __init__(self, worker_wait: float, timeout: float) -> None:
        self.worker_wait, self.timeout = worker_wait, timeout

    def left(self, request: LimitedRequest, now: float) -> float:
        """Seconds that a request may still take, however few; 0: as many as it likes, as offline ones may."""
        return 0.0 if request.offline else self.timeout and max(request.arrival + self.timeout - now, SOON)

    def expired(self) -> RequestRefused:
        """What its client is told."""
        message = f"the request was not complete after {self.timeout:g} seconds (request_timeout)"
        return RequestRefused(Refusal.EXPIRED, message)

    def closing(self) -> RequestRefused:
        """What whoever comes is told while the server ends."""
        message = "the server is shutting down; send the request elsewhere or again later"
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def broken_off(self) -> RequestRefused:
        """And whoever is still there in the end."""
        message = "the server shut down before the answer was complete"
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def crowded(self, model: str) -> RequestRefused:
        """And whoever has waited too long for others to make room."""
        message = (
            f"the request is longer than what loaded models leave of the memory, and for {self.worker_wait:g} seconds too "
            f"many were in use to make room for it beside model {model!r}; try again, or lower max_tokens"
        )
        return RequestRefused(Refusal.UNAVAILABLE, message, RETRY_SECONDS)

    def waited(self, since: float, now: float) -> bool:
        """Whether a request has waited too long for any route, or for room on one."""
        return now - since >= self.worker_wait

    def late(self, requests: Iterable[Limited], now: float) -> list[Limited]:
        """Those that wait and whose time is over; of others their workers say it. ``requests``: in the order of arrival."""
        if not self.timeout:
            return []
        over = takewhile(lambda request: request.arrival + self.timeout <= now, requests)
        return [request for request in over if request.state == "waiting" and not request.offline]

    def unserved(self, queue: WaitingQueue, table: RoutingTable, now: float) -> Iterator[tuple[str, RequestRefused]]:
        """Requests that have waited too long for any route, or wait for what cannot be loaded, one after the other: each
        must be out of the queue before the next is asked for. Those that have waited less are not looked at."""
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
        """For who comes when a model just could not be loaded, or never can: trying again at once would be in vain."""
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
