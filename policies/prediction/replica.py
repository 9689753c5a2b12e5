"""Replicas of a worker's sweep machine elsewhere, which follow the worker's event feed (``sweep/feed.py``).

A replica gets the same calls, and so makes the same plans, which is checked for each plan. Forecasts begin with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ..model.runs import LocalRoute
from ..plan.coefficients import Coefficients
from ..plan.cost import cost
from ..plan.sweep_plan import SweepPlan
from ..sweep.event_log import Applied, Began, Committed
from ..sweep.events import Cancelled, Event, GivenBack, Submission, TokensEmitted
from ..sweep.feed import FeedEntry, PlanMade, Priced, made
from ..sweep.state import SweepState
from .lengths import LengthSpread
from .timeline import TimelineEntry

WINDOW = 64  # sweeps


class Learned:
    """Knowledge from a worker's feed beside the state, kept when the feed begins anew.

    coefficients: None until the worker has reported the cost of its sweeps. spread: the error of length estimates.
    """

    def __init__(self, coefficients: Coefficients | None = None) -> None:
        self.coefficients, self.spread = coefficients, LengthSpread()
        self._gap, self._sweeps = 0.0, 0  # extra seconds of a sweep over its device cost; number of sweeps seen

    def swept(self, plan: SweepPlan, seconds: float) -> None:
        """Learn from a sweep's seconds, from the end of the one before it, or its planning, to the report of its end.

        The device waits for plans, and where there are too few cores the worker waits for one.
        """
        if self.coefficients is not None:
            self._sweeps += 1
            self._gap += (seconds - cost(plan, self.coefficients) - self._gap) / min(self._sweeps, WINDOW)

    def costs(self) -> Coefficients | None:
        """Return the cost of sweeps from end to end."""
        known = self.coefficients
        return known and replace(known, base=max(0.0, known.base + self._gap))


class ReplicaError(Exception):
    """A replica that differs from the worker's machine; the feed has to begin anew."""


class Replica:
    """A replica of one worker (see the module)."""

    def __init__(self, began: Began, learned: Learned | None = None) -> None:
        self.learned = learned or Learned()
        self.state = SweepState.restore(began.snapshot)
        self._open: deque[SweepPlan] = deque()  # without plans that were open when the feed began
        self._since = 0.0  # when the first of them began to run, by the worker's clock

    def take(self, entry: FeedEntry) -> None:
        """Repeat a call. Raises ReplicaError if the result differs here."""
        if isinstance(entry, Priced):
            self.learned.coefficients = entry.coefficients
            return
        try:
            self._repeat(entry)
        except ReplicaError:
            raise
        except Exception as error:
            raise ReplicaError(f"{type(error).__name__}: {error}") from error

    def _repeat(self, entry: FeedEntry) -> None:
        state = self.state
        match entry:
            case Applied():
                state.apply(entry.event, entry.now)
                self._learn(entry.event)
            case PlanMade():
                plan = state.plan(entry.now)
                here = made(plan, entry.now)
                if here != entry:
                    raise ReplicaError(f"the worker made {entry}, the replica {here}")
                if plan is not None:
                    if state.open_plans == 1:
                        self._since = entry.now
                    self._open.append(plan)
            case Committed():
                state.commit(SweepPlan(entry.result.number), entry.result, entry.now)
                if self._open and self._open[0].number == entry.result.number:
                    plan = self._open.popleft()
                    if plan.row:
                        self.learned.swept(plan, entry.now - self._since)
                self._since = entry.now
            case _:
                raise ReplicaError(f"{type(entry).__name__} comes at the beginning of a feed alone")
        for effect in state.take_effects().news:  # the worker performs them
            if isinstance(effect, TokensEmitted) and effect.finish:
                self.learned.spread.end(effect.request, effect.position + len(effect.tokens))
            elif isinstance(effect, GivenBack):
                self.learned.spread.leave(effect.request)

    def _learn(self, event: Event) -> None:
        if isinstance(event, Submission):
            self.learned.spread.begin(event.request, event.prompt_length, event.expected)
        elif isinstance(event, Cancelled):
            self.learned.spread.leave(event.request)

    def route(self, route: str) -> LocalRoute | None:
        """Return a route in force that begins at the worker, or None."""
        return self.state.parts.routes.home(route)

    def present(self, now: float) -> TimelineEntry | None:
        """Return the snapshot for a forecast at ``now`` by the worker's clock.

        None until the cost of sweeps and the content of running plans are known: two sweeps after the feed began.
        """
        costs = self.learned.costs()
        if costs is None or len(self._open) != self.state.open_plans:
            return None
        open, end = [], self._since
        for plan in self._open:
            end = max(now, end + cost(plan, costs))
            open.append((plan, end - now))
        return TimelineEntry(self.state, costs, open, spread=self.learned.spread.value)
