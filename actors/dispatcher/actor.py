"""The dispatcher actor: asks the predictors of all candidates, and lets a policy choose a request's route.

Stateless except for its own counts (requests so far, and their targets in the last minute), so that there may be several
and each may be lost. After the global scheduler of Da and Kalyvianaki's Block, which forwards requests; here the gateway
owns them and is only advised. It is in the predictors' process, so that asking them takes no message. The reasons are in
docs/decisions/prediction.md. ``policies/prediction/dispatching.py`` compares the candidates. A predictor that is late or
dead costs at most the setting ``dispatch_timeout``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from ...policies.prediction.candidate import Candidate
from ...policies.prediction.dispatching import POLICIES, DispatchChoice, Targets, choose, drawn, rank
from ...policies.requests.book.dispatch_messages import Ask, Chosen
from ...policies.requests.standing import Standing
from ...policies.sweep.events import Submission
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint
from ...runtime.actor.ref import Ref
from ...runtime.base.errors import DeadlineExceeded, RuntimeFault
from ..predictor.messages import NODE, Query, predictor_of
from ..settings.dispatching import DispatchSettings

MINUTE = 60.0


class Dispatcher(Actor):
    """A dispatcher (see the module). ``number``: among all dispatchers; each has its own random sequence."""

    def __init__(self, settings: DispatchSettings, number: int, places: Mapping[str, str] | None = None) -> None:
        self._places = {} if places is None else places  # worker -> the process with its predictor
        self._name, self._policy = settings.dispatch, POLICIES[settings.dispatch]
        self._targets = Targets(settings.slo_ttft, settings.slo_latency)
        self._choices = settings.dispatch_candidates
        self._sample = settings.dispatch_sample
        self._timeout = settings.dispatch_timeout
        self._random = Random(f"dispatcher {number}")
        self._number = 0  # number of the next request, for round robin
        self._sent: dict[str, deque[float]] = {}  # home -> times of requests sent there in the last minute

    @endpoint
    async def choose(self, ask: Ask) -> Chosen:
        """Return a route for an attempt, if anything is known of any, and report it to the predictor of its home.

        Requests are handled one after the other, so that each forecast includes the requests before it. Handled together,
        all would go to the worker that was idle when they came.
        """
        routes, number = list(ask.routes), self._number
        self._number += 1
        compared = [routes[i] for i in self._drawn(len(routes))]
        sampled = self._policy.looks and self._random.random() < self._sample
        unanswered: Counter[str] = Counter()
        known = await self._look(ask, routes if sampled else compared, unanswered)
        candidates = [known[route] for route in compared if route in known]
        request, attempt = ask.submission.request, ask.submission.attempt
        said = partial(Chosen, request=request, attempt=attempt, policy=self._name, unanswered=dict(unanswered))
        if not candidates:
            return said(reason="no_answer")
        choice = self._choose(candidates, number, ask.standings)
        route, reason = candidates[choice.index].route, choice.reason
        everyone = list(known.values())
        place, ranked = self._rank(everyone, route, number, ask.standings) if sampled and not reason else (0, 0)
        self._place(ask.submission, route, ask.routes[route][0])
        loads = [None if load is None else list(load) for load in choice.loads]
        return said(route=route, reason=reason, candidates=candidates, loads=loads, rank=place, ranked=ranked)

    def _drawn(self, count: int) -> Sequence[int]:
        """Return the places of the candidates to compare (power of k)."""
        if not 0 < self._choices < count:
            return range(count)
        return drawn(count, [self._random.random() for _ in range(self._choices)])

    def _choose(self, candidates: Sequence[Candidate], number: int, standings: Mapping[str, Standing]) -> DispatchChoice:
        draw = self._random.random()
        return choose(self._name, candidates, draw, number=number, targets=self._targets, standings=standings)

    def _rank(
        self, everyone: Sequence[Candidate], route: str, number: int, standings: Mapping[str, Standing]
    ) -> tuple[int, int]:
        """Return the rank of a route among all that answered, and their number."""
        loads = self._choose(everyone, number, standings).loads
        index = next(i for i, candidate in enumerate(everyone) if candidate.route == route)
        return rank(loads, index), len(loads)

    async def _look(self, ask: Ask, routes: Sequence[str], unanswered: Counter[str]) -> dict[str, Candidate]:
        """Return the candidate of each route whose predictor answers in time; all are asked at once."""
        if not self._policy.looks:
            return {route: self._blank(ask, route) for route in routes}
        answers = await asyncio.gather(*[self._ask(ask, route) for route in routes], return_exceptions=True)
        known = {}
        for route, answer in zip(routes, answers, strict=True):
            match answer:
                case Candidate():
                    workers = ask.routes[route]
                    known[route] = replace(answer, sent_last_minute=self._sent_to(workers[0])).of_one(len(workers))
                case None:
                    unanswered["absent"] += 1
                case DeadlineExceeded():
                    unanswered["late"] += 1
                case RuntimeFault():
                    unanswered["dead"] += 1
                case BaseException():
                    raise answer
        return known

    async def _ask(self, ask: Ask, route: str) -> Candidate | None:
        """Ask the predictor of the route's home; return None if it has no replica of its worker."""
        target, kind = replace(ask.submission, route=route), Candidate | None
        query = Query(target, route, forecast=bool(self._policy.fallback), delays=self._policy.delays)
        returns: Any = kind
        predictor = self._predictor(ask.routes[route][0])
        answer: Candidate | None = await predictor.ask(query, timeout=self._timeout, returns=returns)
        return answer

    def _blank(self, ask: Ask, route: str) -> Candidate:
        """Return a candidate of which only the requests sent there are known."""
        home, *others = ask.routes[route]
        return Candidate(route=route, home=home, sent_last_minute=self._sent_to(home)).of_one(1 + len(others))

    def _sent_to(self, home: str) -> int:
        sent, since = self._sent.get(home, deque()), self.node.clock.now() - MINUTE
        while sent and sent[0] <= since:
            sent.popleft()
        return len(sent)

    def _place(self, submission: Submission, route: str, home: str) -> None:
        """Record a request, so that later forecasts include it."""
        self._sent_to(home)
        self._sent.setdefault(home, deque()).append(self.node.clock.now())
        if self._policy.looks:
            self._predictor(home).placed.cast(replace(submission, route=route))

    def _predictor(self, worker: str) -> Ref:
        return self.node.ref(predictor_of(worker, self._places.get(worker, NODE)))
