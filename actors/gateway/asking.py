"""Requests that a dispatcher is asked about: the questions that are open, what was answered, how right forecasts were.

A request that is asked about waits like any other meanwhile. Owns no request and no route; who may take which route is
``policies/requests/dispatch.py``'s. Never waits for an answer itself: whoever asks brings one, or says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import isfinite

from ...policies.model.chain import Route
from ...policies.requests.dispatch import workers_of
from ...policies.sweep.events import Submission
from ..dispatcher.messages import Ask, Chosen
from .decision import Decision
from .observations import Observations
from .port import DispatchFigures, ForecastPoint
from .record import RequestRecord


@dataclass(frozen=True, slots=True)
class Question:
    """Where should this go? ``submission``: of the attempt to come, without a route."""

    submission: Submission
    since: float


@dataclass(frozen=True, slots=True)
class Advice:
    question: Question
    chosen: Chosen


class Asking:
    """See the module. ``wanted``: whether dispatchers are asked at all."""

    def __init__(self, wanted: bool = False) -> None:
        self.wanted = wanted
        self.alone = False  # also about a request that only one route can take: the forecast is wanted for its own sake
        self.observations = Observations()
        self.open: dict[str, Question] = {}  # request -> what is asked about it
        self.figures = DispatchFigures()

    def ask(self, submission: Submission, routes: Sequence[Route], now: float) -> Ask:
        """The request is asked about from now on."""
        self.open[submission.request] = Question(submission, now)
        return Ask(submission, {route.id: list(workers_of(route)) for route in routes})

    def take(self, chosen: Chosen, now: float) -> Advice | None:
        """The answer to an open question; None where nobody waits for it any more."""
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
        """The route that was chosen if that is still open, else the default; and what was decided for the story."""
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
        """Whatever is answered about it comes too late. No-op where nothing is asked."""
        self.open.pop(request, None)

    def ended(self, record: RequestRecord, now: float) -> None:
        """A request has ended: how right the forecast of its last attempt was. What was cut short says nothing, nor does how
        long offline requests take."""
        if record.offline:
            return
        self.observations.ended(now - record.arrival)
        decision = record.decision
        if decision is None or decision.forecast is None or decision.first_token is None or record.state != "finished":
            return
        first, last = decision.errors(now)
        self.figures.first_token_error.observe(first)
        self.figures.latency_error.observe(last)
        predicted, since = decision.forecast, decision.since
        if isfinite(predicted.last_token):  # else it was said never to end
            came = (predicted.first_token, decision.first_token - since, predicted.last_token, now - since)
            self.figures.points.append(ForecastPoint(record.id, *came))

    def seen(self, active: Mapping[str, RequestRecord], now: float) -> tuple[float, float] | None:
        """See ``Observations.take``; ``active``: the requests that have not ended, in the order of their arrival, of which
        nobody waits for the offline ones."""
        first = next((record for record in active.values() if not record.offline), None)
        return self.observations.take(0.0 if first is None else now - first.arrival)

    def check(self, waiting: Set[str]) -> None:
        """Raise AssertionError when an invariant is broken. ``waiting``: requests without a route."""
        assert self.open.keys() <= waiting
        assert self.wanted or not self.open
