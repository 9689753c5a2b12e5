"""Event feed: every input and plan of this worker's sweep machine, streamed to replicas (``actors/predictor``).

Stands before the machine only while there is a subscriber. A call costs the event loop one small object; entries of
``TOGETHER`` seconds travel as one message. A slow subscriber never blocks the worker: beyond ``MOST_WAITING`` entries it is
dropped to a fresh snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from ...policies.plan.coefficients import Coefficients
from ...policies.plan.sweep_plan import SweepPlan, SweepResult
from ...policies.sweep.event_log import Applied, Began
from ...policies.sweep.events import Event
from ...policies.sweep.feed import FeedEntry, Priced, committed, made
from ...policies.sweep.state import SweepState
from .event_recorder import Machine
from .feed_format import write_batch

TOGETHER = 0.004  # seconds
MOST_WAITING = 4096  # entries kept for a subscriber; a sweep makes two, and each request one

Aside = Callable[[Callable[[], bytes]], Awaitable[bytes]]  # runs slow work beside the event loop


class _Subscriber:
    """Entries that wait for one reader. ``stale``: it has to begin with a snapshot."""

    def __init__(self) -> None:
        self.entries: list[FeedEntry] = []
        self.stale = True
        self.ready = asyncio.Event()


class EventFeed:
    """A ``Machine`` that forwards every call to ``machine`` and streams it to subscribers.

    ``state`` is the machine's state. ``stand`` is called with the machine that all further calls must go through. ``costs``
    returns the known costs of sweeps, or None while they are unknown. ``aside`` runs the encoding of snapshots.
    """

    def __init__(
        self,
        state: SweepState,
        machine: Machine,
        stand: Callable[[Machine], None],
        costs: Callable[[], Coefficients | None],
        aside: Aside,
    ) -> None:
        self._state = state
        self._machine = machine
        self._stand = stand
        self._costs = costs
        self._aside = aside
        self._loop = asyncio.get_running_loop()
        self._subscribers: set[_Subscriber] = set()
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, event: Event, now: float) -> None:
        self._tell(Applied(event, now))
        self._machine.apply(event, now)

    def plan(self, now: float) -> SweepPlan | None:
        plan = self._machine.plan(now)
        self._tell(made(plan, now))
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        self._tell(committed(result, now))
        self._machine.commit(plan, result, now)

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield batches without end. The first one is a snapshot."""
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        self._stand(self)
        sent: Coefficients | None = None
        try:
            while True:
                if subscriber.stale:
                    sent = None
                    subscriber.stale = False
                    subscriber.entries = []
                    yield await self._aside(partial(_snapshot, self._state.fork()))
                    continue
                if (costs := self._costs()) is not None and costs is not sent:
                    sent = costs
                    subscriber.entries.append(Priced(costs))
                if subscriber.entries:
                    entries, subscriber.entries = subscriber.entries, []
                    yield write_batch(entries)
                    continue
                subscriber.ready.clear()
                await subscriber.ready.wait()
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._stand(self._machine)

    def _tell(self, entry: FeedEntry) -> None:
        for subscriber in self._subscribers:
            if subscriber.stale:
                continue
            subscriber.entries.append(entry)
            if len(subscriber.entries) > MOST_WAITING:
                subscriber.stale, subscriber.entries = True, []
        if self._timer is None:
            self._timer = self._loop.call_later(TOGETHER, self._due)

    def _due(self) -> None:
        self._timer = None
        for subscriber in self._subscribers:
            subscriber.ready.set()


def _snapshot(state: SweepState) -> bytes:
    return write_batch([Began(state.snapshot())])
