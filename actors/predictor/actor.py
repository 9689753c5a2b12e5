"""The predictor actor: keeps a replica of one worker's sweep machine and forecasts requests there.

There is one for each worker, and all of a host are in one process. It follows the worker's event feed while the worker
lives, and its next life from the start. Every figure is computed in ``policies/prediction``; here are the stream, the
clock, and the calls to other predictors, which provide their workers' machines if a route crosses them. It runs on its
worker's host, or reads that host's clock from the feed.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Any

from ...policies.prediction.candidate import Candidate, Forecast
from ...policies.prediction.forecast import Forecaster
from ...policies.prediction.in_flight import InFlight
from ...policies.prediction.load import candidate_at
from ...policies.prediction.machines import LinkTimes
from ...policies.prediction.replica import Learned, Replica, ReplicaError
from ...policies.prediction.timeline import TimelineEntry
from ...policies.prediction.worker_clock import WorkerClock
from ...policies.sweep.event_log import Applied, Began
from ...policies.sweep.events import Cancelled, Submission
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.clock import Timer
from ...runtime.base.errors import NodeDown, NoSuchActor, RuntimeFault
from ..worker.feed_format import read_batch
from .messages import Query, predictor_of

log = logging.getLogger(__name__)
RETRY = 0.1  # seconds until an ended feed is requested again, if its worker does not come before
HOST_SECONDS = 0.5  # timeout of another predictor
KEPT = 512  # forecast times kept


class Predictor(Actor):
    """A predictor (see the module).

    board: the place where this process publishes its ``figures``, by worker. links: between workers; None: unknown, and
    their messages count as instant. places: the processes of other workers' predictors, if not all are in this one.
    """

    def __init__(
        self,
        worker: str,
        board: dict[str, Callable[[], dict[str, float]]],
        links: LinkTimes | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self._places = {} if places is None else places
        self._clock = WorkerClock()
        self._worker = worker
        self._board = board
        self._links = links
        self._replica: Replica | None = None
        self._learned = Learned()  # kept over lives, which compute on the same device
        self._in_flight = InFlight()
        self._known = 0  # incarnation of the worker followed last
        self._feeds = self._disagreements = self._batches = self._forecasts = 0
        self._lag = self._seconds = 0.0
        self._last: deque[float] = deque(maxlen=KEPT)
        self._again = asyncio.Event()

    async def on_start(self) -> None:
        self._loop_time = asyncio.get_running_loop().time  # the clock that workers of this machine give theirs
        self._board[self._worker] = self.figures
        self._deafen = self.node.on_arrival(self._again.set)
        # In a context of its own: the deadline of the caller that started it must not end it.
        self._task = asyncio.get_running_loop().create_task(self._follow(), context=contextvars.Context())

    async def on_stop(self) -> None:
        self._deafen()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # calls

    @endpoint
    async def ask(self, query: Query) -> Candidate | None:
        """Return the load of the worker, with a forecast of the request there if one is wanted and possible.

        None while there is no replica with that route.
        """
        route = self._replica.route(query.route) if self._replica is not None else None
        if route is None:
            return None
        others = [await self._present_of(hop.worker) for hop in route.route.hops[1:]] if query.forecast else []
        self._in_flight.leave(query.submission.request)  # this is a new attempt
        replica, now = self._replica, self._now()
        if replica is None:  # the replica was found to differ meanwhile
            return None
        in_flight = self._in_flight.waiting(now)
        home = replica.present(now) if query.forecast else None
        forecast = None
        if home is not None and None not in others:
            presents = [home, *[present for present in others if present is not None]]
            forecast = self._forecast(presents, query, in_flight, now)
        return candidate_at(replica.state, query.route, query.submission, in_flight, forecast)

    @endpoint
    async def placed(self, submission: Submission) -> None:
        """Note that a dispatcher has sent a request there."""
        self._in_flight.place(submission, self._now())

    @endpoint(concurrent=True)
    async def present(self) -> Any:
        """Return a copy of its worker as it is now, for a predictor of the same process; None if there is none."""
        present = self._replica.present(self._now()) if self._replica is not None else None
        return present and present.fork()

    def figures(self) -> dict[str, float]:
        """Return counters since its start, seconds, and present values, for the metrics."""
        replica = self._replica
        cuts = quantiles(self._last, n=100) if len(self._last) > 1 else [0.0] * 99
        return {
            "replica": float(replica is not None),
            "in_flight": float(len(self._in_flight.waiting(self._now()))),
            "feeds": float(self._feeds),
            "disagreements": float(self._disagreements),
            "batches": float(self._batches),
            "lag_seconds": self._lag,
            "forecasts": float(self._forecasts),
            "forecast_seconds": self._seconds,
            "forecast_p50": cuts[49],
            "forecast_p99": cuts[98],
        }

    def _forecast(self, presents: list[TimelineEntry], query: Query, in_flight: list[Submission], now: float) -> Forecast:
        began = time.perf_counter()
        forecaster = Forecaster(presents, now, in_flight=in_flight, links=self._links)
        forecast = forecaster.forecast(query.submission, delays=query.delays)
        spent = time.perf_counter() - began
        self._forecasts += 1
        self._seconds += spent
        self._last.append(spent)
        return forecast

    async def _present_of(self, host: str) -> TimelineEntry | None:
        try:
            if self._places.get(host, self.node.name) != self.node.name:
                return None  # a copy of a machine does not travel
            here = self.node.ref(predictor_of(host, self.node.name))
            present: TimelineEntry | None = await here.present(timeout=HOST_SECONDS)
        except RuntimeFault:
            return None
        return present

    def _now(self) -> float:
        """Return the time by the worker's clock."""
        return self._clock.of_worker(self._loop_time())

    # the feed --------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Follow the worker's feed, and the next one when it ends."""
        while True:
            self._again.clear()
            try:
                await self._read()
            except ReplicaError as error:
                self._disagreements += 1
                log.warning("the replica of %s differs and starts again: %s", self._worker, error)
            except (NodeDown, NoSuchActor) as error:
                log.debug("the feed of %s ended: %s", self._worker, error)
            except RuntimeFault as error:
                log.warning("the feed of %s ended: %s", self._worker, error)
            self._replica = None
            timer: Timer = self.node.clock.call_at(self.node.clock.now() + RETRY, self._again.set)
            await self._again.wait()
            timer.cancel()

    async def _read(self) -> None:
        """Read the feed of one life of the worker, or of a part of it."""
        worker = self.node.ref(f"{self._worker}/worker")
        async with worker.feed(timeout=math.inf, returns=bytes) as batches:
            if worker.incarnation != self._known:
                self._known, self._clock = worker.incarnation, WorkerClock()
                self._in_flight.forget()  # requests sent to the life before do not arrive
            async for batch in batches:
                self._take(batch)

    def _take(self, batch: bytes) -> None:
        entries = list(read_batch(batch))
        if times := [entry.now for entry in entries if hasattr(entry, "now")]:
            self._clock.hear(max(times), self._loop_time())
        oldest = now = self._now()
        for entry in entries:
            if isinstance(entry, Began):
                self._replica = Replica(entry, self._learned)
                self._feeds += 1
                continue
            if self._replica is None:
                raise ReplicaError("a feed begins without a snapshot")
            self._replica.take(entry)
            if isinstance(entry, Applied) and isinstance(entry.event, Submission):
                self._in_flight.show(entry.event.request, entry.event.attempt, now)
            elif isinstance(entry, Applied) and isinstance(entry.event, Cancelled):
                self._in_flight.leave(entry.event.request)
            oldest = min(oldest, getattr(entry, "now", now))
        self._batches += 1
        self._lag += self._now() - oldest
