"""The open questions to dispatchers about requests, their answers, and the accuracy of the forecasts in them.

It also owns the observed latencies, the input of autoscaling, but no request and no route. A request that is asked about
waits like any other meanwhile; ``policies/requests/dispatch.py`` decides which routes it may take. The module never waits
for an answer itself: the caller delivers one, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from ...model.chain import Route
from ...sweep.events import Submission
from ..dispatch import workers_of
from ..standing import Standing
from .decision import Decision
from .dispatch_messages import Ask, Chosen
from .record import RequestRecord
from .values import DispatchFigures, ForecastPoint

NONE: Mapping[str, Standing] = MappingProxyType({})


class Observations:
    """The worst latency of each kind since the last report to the controller, in seconds; the input of autoscaling."""

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0

    def ended(self, seconds: float) -> None:
        """Record the latency of an ended request, from its arrival."""
        self._measured = max(self._measured, seconds)

    def predicted(self, seconds: float) -> None:
        """Record a forecast: for a placed request, the least time to its last token on any worker."""
        self._predicted = max(self._predicted, seconds)

    def take(self, oldest: float) -> tuple[float, float] | None:
        """Return (measured, predicted) and start anew; None if nothing was observed.

        ``oldest``: age of the oldest request that has not ended, 0 without any. It counts as measured too.
        """
        found = max(self._measured, oldest), self._predicted
        self._measured = self._predicted = 0.0
        return found if any(found) else None


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a dispatcher. ``submission``: the next attempt, without a route."""

    submission: Submission
    since: float


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer to an open question."""

    question: Question
    chosen: Chosen


class DispatchQueries:
    """The gateway's open questions (see the module). ``wanted``: whether dispatchers are asked at all."""

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.alone = False  # also ask about a request with only one route, to get its forecast
        self.observations = Observations()
        self.open: dict[str, Question] = {}  # by request
        self.figures = DispatchFigures()

    def ask(
        self, submission: Submission, routes: Sequence[Route], now: float, standings: Mapping[str, Standing] = NONE
    ) -> Ask:
        """Open a question about a request, and return the message to a dispatcher. standings: as in ``Ask``."""
        self.open[submission.request] = Question(submission, now)
        return Ask(submission, {route.id: list(workers_of(route)) for route in routes}, dict(standings))

    def accept(self, chosen: Chosen, now: float) -> Advice | None:
        """Match an answer to its open question; return None if the question is closed or is about another attempt."""
        question = self.open.get(chosen.request)
        if question is None or question.submission.attempt != chosen.attempt:
            return None
        del self.open[chosen.request]
        self.figures.asked.observe(now - question.since)
        for reason, count in chosen.unanswered.items():
            self.figures.unanswered[reason] = self.figures.unanswered.get(reason, 0) + count
        if chosen.rank:
            self.figures.rank.observe(chosen.rank)
        forecasts = [candidate.forecast.last_token for candidate in chosen.candidates if candidate.forecast]
        if forecasts:
            self.observations.predicted(min(forecasts))
        return Advice(question, chosen)

    def decide(self, advice: Advice, routes: Sequence[Route], default: Route, now: float) -> tuple[Route, Decision]:
        """Return the chosen route if it is still open, else the default, with the decision for the request's history."""
        chosen, reason = advice.chosen, advice.chosen.reason
        route = next((route for route in routes if route.id == chosen.route), None)
        if route is None and chosen.route:
            reason = "route_gone"
        if reason:
            self.figures.fallbacks[reason] = self.figures.fallbacks.get(reason, 0) + 1
        route = route or default
        since = advice.question.since
        return route, Decision(chosen, route.id, reason, since, now - since)

    def drop(self, request: str) -> None:
        """Close a question, so that a late answer is ignored. No-op where none is open."""
        self.open.pop(request, None)

    def ended(self, record: RequestRecord, now: float) -> None:
        """Record the latency of an ended request and the forecast error of its last attempt.

        A request that was cut short says nothing about the forecast. Offline requests are not recorded: their latency does
        not matter.
        """
        if record.offline:
            return
        self.observations.ended(now - record.arrival)
        decision = record.placement.decision
        if decision is None or decision.forecast is None or decision.first_token is None or record.state != "finished":
            return
        first, last = decision.errors(now)
        self.figures.first_token_error.observe(first)
        self.figures.latency_error.observe(last)
        predicted, since = decision.forecast, decision.since
        if isfinite(predicted.last_token):  # else the forecast was that it never ends
            came = (predicted.first_token, decision.first_token - since, predicted.last_token, now - since)
            self.figures.points.append(ForecastPoint(record.id, *came))

    def seen(self, active: Mapping[str, RequestRecord], now: float) -> tuple[float, float] | None:
        """Return the observations since the last call (see ``Observations.take``).

        ``active``: the requests that have not ended, in order of arrival. Offline ones do not count, since no client waits
        for them.
        """
        first = next((record for record in active.values() if not record.offline), None)
        return self.observations.take(0.0 if first is None else now - first.arrival)

    def check(self, waiting: Set[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``waiting``: requests without a route."""
        assert self.open.keys() <= waiting
        assert self.wanted or not self.open
