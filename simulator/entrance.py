"""What stands before the instances: whether a request is taken, and which instance it goes to.

The policies of the gateway and the dispatcher (``policies/requests``, ``policies/prediction``) without the gateway's state
machine, which hears of every token of every request: that is most of what jumps save (decision 25).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockwright.policies.model.chain import Route
from blockwright.policies.prediction.candidate import Candidate, Forecast
from blockwright.policies.prediction.dispatching import POLICIES, choose, drawn
from blockwright.policies.requests.admission import admit
from blockwright.policies.requests.dispatch import choose as choose_route
from blockwright.policies.requests.overload import Overload
from blockwright.simulator.description import LEAST_WORK, DispatchSpec, LimitSpec, ModelSpec
from blockwright.simulator.instance import Instance
from blockwright.simulator.workload import Demand

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Placing:
    """A decision: the instance taken, those compared, and the load by which they were; the least time to the last token that
    was forecast, 0 without forecasts."""

    place: int
    compared: list[int]
    loads: list[object]
    predicted: float = 0.0


class Entrance:
    """See the module. ``routes``: of each instance, for each model."""

    def __init__(
        self,
        dispatch: DispatchSpec,
        limits: LimitSpec,
        models: Sequence[ModelSpec],
        instances: Sequence[Instance],
        routes: Sequence[dict[str, Route]],
        seed: int,
    ) -> None:
        self._dispatch, self._instances, self._routes = dispatch, instances, routes
        self._contexts = {model.name: model.context for model in models}
        self._alone = len(models) == 1
        self._room = max(instance.total_blocks * instance.state.config.page_size for instance in instances)
        self._overload = Overload(limits.max_waiting, 0)
        self._source = random.Random(f"{seed} dispatch")
        self._sent: list[deque[float]] = [deque() for _ in instances]
        self._number = 0
        self._plain = dispatch.policy != LEAST_WORK and POLICIES[dispatch.policy].load is POLICIES["random"].load
        self.active = list(range(len(instances)))  # places that requests go to
        self.predicts = dispatch.policy != LEAST_WORK and POLICIES[dispatch.policy].fallback != ""
        self._blank = Candidate(route="", home="")

    def refusal(self, demand: Demand, now: float) -> str:
        """Why it is not taken; empty where it is."""
        tokens = demand.total
        if tokens > self._contexts[demand.model]:
            return f"{tokens} tokens are more than the {self._contexts[demand.model]} of {demand.model}"
        full = self._overload.refusal(demand.model, tokens, 0, now, alone=self._alone)
        return full.message if full else admit(tokens, self._room) or ""

    def begin(self, demand: Demand, now: float) -> Placing:
        """It is taken; where it goes."""
        self._overload.begin(demand.model)
        choices, compared = self._dispatch.choices, self.active
        if 0 < choices < len(compared):
            compared = [compared[at] for at in drawn(len(compared), [self._source.random() for _ in range(choices)])]
        placing = self._place(demand, compared, now)
        self._number += 1
        if self._dispatch.policy == "min-qpm":
            self._sent[placing.place].append(now)
        return placing

    def end(self, model: str, now: float) -> None:
        """It is over."""
        self._overload.end(model, 0, now)

    def _place(self, demand: Demand, compared: list[int], now: float) -> Placing:
        if self._dispatch.policy == LEAST_WORK:
            return self._least_work(demand, compared, now)
        candidates = [self._blank] * len(compared) if self._plain else [self._candidate(i, now) for i in compared]
        predicted = 0.0
        if self.predicts:
            asked = zip(compared, candidates, strict=True)
            candidates = [replace(candidate, forecast=self._forecast(i, demand, now)) for i, candidate in asked]
            predicted = min(candidate.forecast.last_token for candidate in candidates if candidate.forecast)
        choice = choose(self._dispatch.policy, candidates, self._source.random(), number=self._number)
        return Placing(compared[choice.index], compared, list(choice.loads), predicted)

    def _forecast(self, i: int, demand: Demand, now: float) -> Forecast:
        config, route = self._instances[i].state.config, self._routes[i][demand.model].id
        target = demand.submission(route, config.page_size, hashed=config.prefix_cache, timeout=0.0)
        return self._instances[i].forecast(target, now, delays=POLICIES[self._dispatch.policy].delays)

    def _least_work(self, demand: Demand, compared: list[int], now: float) -> Placing:
        loads = [self._instances[i].outstanding(now) for i in compared]
        routes = [self._routes[i][demand.model] for i in compared]
        work = {self._instances[i].name: load for i, load in zip(compared, loads, strict=True)}
        capacity = {
            self._routes[i][demand.model].id: self._instances[i].total_blocks * self._instances[i].state.config.page_size
            for i in compared
        }
        best = choose_route(routes, work, tokens=demand.total, capacity=capacity)
        assert best is not None, "no route of some is the best"
        return Placing(compared[routes.index(best)], compared, list(loads))

    def _candidate(self, i: int, now: float) -> Candidate:
        sent = self._sent[i]
        while sent and sent[0] <= now - MINUTE:
            sent.popleft()
        return self._instances[i].candidate(now, len(sent))
