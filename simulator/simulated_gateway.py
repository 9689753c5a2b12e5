"""Gateway of a simulated cluster: admission of requests, and the choice of an instance.

Uses the policies of the gateway and the dispatcher (``policies/requests``, ``policies/prediction``) without the gateway's
state machine, which would hear of every token of every request: leaving it out is most of what jumps save
(docs/decisions/simulator.md). A dispatcher knows an instance by a snapshot of it, which may be old, and by the requests that
it knows to be in flight.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..policies.model.chain import Chain, Route
from ..policies.prediction.candidate import Candidate, Forecast
from ..policies.prediction.dispatching import POLICIES, choose, drawn
from ..policies.prediction.forecast import Forecaster
from ..policies.prediction.instance import Instance
from ..policies.prediction.lengths import clipped
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.admission import admit
from ..policies.requests.admission_limit import AdmissionLimit
from ..policies.requests.dispatch import PLAIN
from ..policies.requests.dispatch import choose as choose_route
from ..policies.requests.kv_dispatch import LEAST_BUSY, OFF, copied_from, copied_part, weighed
from ..policies.requests.paces import Paces
from ..policies.requests.standing import RouteView
from ..policies.sweep.events import Submission
from .description import LEAST_WORK, LimitSpec
from .dispatch_spec import DispatchSpec
from .kv import KnownKv
from .model_spec import ModelSpec
from .variants import SimulatedVariants
from .workload import WorkloadRequest

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class DispatchDecision:
    """A dispatch decision: the chosen instance, the instances compared, and their loads.

    ``predicted`` is the least forecast time to the last token, 0 without forecasts. ``source``: the instance whose KV of the
    prompt is copied to it; -1: none. ``serves``: the model whose chain is taken; empty: the request's own.
    """

    place: int
    compared: list[int]
    loads: Sequence[object]
    predicted: float = 0.0
    source: int = -1
    serves: str = ""


@dataclass(slots=True)
class InstanceSnapshot:
    """A snapshot of an instance at ``at`` (the periodic update model of Mitzenmacher, "How Useful Is Old Information?",
    2000).

    ``outstanding`` is for ``least-work``, which needs no candidate. ``forecaster`` is for policies that forecast.
    """

    at: float
    candidate: Candidate
    outstanding: int
    forecaster: Forecaster | None


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request on its way to an instance. It arrives at ``shown``, and later snapshots include it."""

    shown: float
    dispatcher: int
    submission: Submission
    blocks: int


class SimulatedGateway:
    """Gateway of a simulated cluster (see the module).

    routes: each instance's routes, by model. chains: of each model, on any instance. paces: of all devices; None: they are
    equally fast.
    """

    def __init__(
        self,
        dispatch: DispatchSpec,
        limits: LimitSpec,
        models: Sequence[ModelSpec],
        instances: Sequence[Instance | PipelineInstance],
        routes: Sequence[dict[str, Route]],
        chains: Mapping[str, Chain],
        seed: int,
        paces: Paces | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._paces = paces or Paces()
        self._known = KnownKv() if dispatch.kv_dispatch != OFF else None
        self.copy_seconds = 0.0  # for which KV of a token is on a link; 0: unknown
        self._instances = instances
        self._routes = routes
        self._contexts = {model.name: model.context for model in models}
        self._drafts = {model.name: model.drafts for model in models}
        self._alone = len(models) == 1
        rooms = [instance.total_blocks * instance.state.config.page_size for instance in instances]  # in tokens
        # by route id: tokens that it holds
        self.capacity = {route.id: room for room, own in zip(rooms, routes, strict=True) for route in own.values()}
        # by model: its routes, by place
        self._homes = {name: {i: own[name] for i, own in enumerate(routes) if name in own} for name in self._contexts}
        self.variants = SimulatedVariants(models, chains, instances, self._paces)
        serving = {name: (name, *others) for name, others in self.variants.equivalents.items()}
        # by model: tokens of one request that fit somewhere
        self.longest = {m: max(rooms[i] for one in names for i in self._homes[one]) for m, names in serving.items()}
        self._overload = AdmissionLimit(limits.max_waiting, 0)
        self._source, self._errors = random.Random(f"{seed} dispatch"), random.Random(f"{seed} forecasts")
        self._sent: list[list[deque[float]]] = [[deque() for _ in instances] for _ in range(dispatch.dispatchers)]
        self._numbers, self._counts = [0] * dispatch.dispatchers, dispatch.policy == "min-qpm"
        self._plain = dispatch.policy != LEAST_WORK and POLICIES[dispatch.policy].load is POLICIES["random"].load
        self.active = {name: [*own] for name, own in self._homes.items()}  # by model: places that requests go to
        # by model and equivalent: places where this serves that model's requests, where it is not all of its own
        self.lent: dict[tuple[str, str], list[int]] = {}
        # by model: tokens of one request that a place holds, where places are known to differ
        self.rooms: dict[str, dict[int, int]] = {}
        self.predicts = dispatch.policy != LEAST_WORK and POLICIES[dispatch.policy].fallback != ""
        self._blanks = [Candidate(route="", home="")] * len(instances)  # for policies that need no knowledge
        self._looks: list[InstanceSnapshot | None] = [None] * len(instances)
        self._latency = limits.latency
        self._reckons = (
            dispatch.in_flight not in ("none", "alone")
            and (dispatch.staleness > 0 or limits.latency > 0)
            and not self._plain
        )
        self._flying: list[deque[InFlightRequest]] = [deque() for _ in instances]
        self._knows_own = dispatch.in_flight == "alone"
        self._own: list[Counter[int]] = [Counter() for _ in range(dispatch.dispatchers)]  # by place: tokens sent there
        self._sent_by: dict[int, tuple[int, int, int]] = {}  # by request: its dispatcher, place and tokens
        # by place, if more than one; a block there takes only that fraction of each device's memory
        self.devices: dict[int, int] = {}
        # by place: requests that wait for an instance elsewhere, and their blocks
        self.outside: dict[int, tuple[int, int]] = {}
        self.held = 0  # requests that wait for an instance that can have them

    def refusal(self, demand: WorkloadRequest, now: float) -> str:
        """Return why a request is refused; empty if it is accepted."""
        tokens = demand.total
        if tokens > self._contexts[demand.model]:
            return f"{tokens} tokens are more than the {self._contexts[demand.model]} of {demand.model}"
        full = self._overload.refusal(demand.model, tokens, 0, now, alone=self._alone)
        return full.message if full else admit(tokens, self.longest[demand.model]) or ""

    @property
    def token_seconds(self) -> float:
        """Seconds of a token on the fastest device; 0: unknown."""
        return self._paces.unit

    def note_copied(self, demand: WorkloadRequest, route: Route, size: int) -> None:
        """Note that the pages of a prompt have been copied to a route. ``size``: tokens of a page."""
        if self._known is not None:
            self._known.note(demand, route, size, self.capacity[route.id] // size)

    def begin(self, model: str) -> None:
        """Note that a request is accepted."""
        self._overload.begin(model)

    def places(self, demand: WorkloadRequest) -> list[int]:
        """Return the places that a request can go to."""
        active, rooms = self.active[demand.model], self.rooms.get(demand.model)
        return active if rooms is None else [place for place in active if demand.total <= rooms[place]]

    def choose(self, demand: WorkloadRequest, now: float) -> DispatchDecision:
        """Choose the instance of a request."""
        choices, compared = self._dispatch.choices, self.places(demand)
        dispatcher = self._source.randrange(self._dispatch.dispatchers) if self._dispatch.dispatchers > 1 else 0
        if 0 < choices < len(compared):
            compared = [compared[at] for at in drawn(len(compared), [self._source.random() for _ in range(choices)])]
        placing = self._place(demand, compared, dispatcher, now)
        self._numbers[dispatcher] += 1
        if self._counts:
            self._sent[dispatcher][placing.place].append(now)
        if self._knows_own:
            self.forget(demand.number)
            self._own[dispatcher][placing.place] += demand.total
            self._sent_by[demand.number] = dispatcher, placing.place, demand.total
        if self._reckons:
            sent = self._submission(placing.place, demand, placing.serves or demand.model)
            blocks = -(-demand.prompt // self._instances[placing.place].state.config.page_size)
            self._flying[placing.place].append(InFlightRequest(now + self._latency, dispatcher, sent, blocks))
        return placing

    def replaced(self, place: int, devices: int = 1) -> None:
        """Note that there is another instance, of some devices, at a place. Nothing is known of it yet."""
        self._looks[place] = None
        self._flying[place].clear()
        self.devices[place] = devices
        instance = self._instances[place]
        for model, route in self._routes[place].items():
            self._homes[model][place] = route
            self.capacity[route.id] = instance.total_blocks * instance.state.config.page_size

    def end(self, model: str, now: float) -> None:
        """Note the end of a request."""
        self._overload.end(model, 0, now)

    def forget(self, request: int) -> None:
        """Note that a request is not where its dispatcher sent it any more."""
        if (sent := self._sent_by.pop(request, None)) is not None:
            dispatcher, place, tokens = sent
            self._own[dispatcher][place] -= tokens

    def _place(self, demand: WorkloadRequest, compared: list[int], dispatcher: int, now: float) -> DispatchDecision:
        if self._dispatch.policy == LEAST_WORK:
            return self._least_work(demand, compared, dispatcher, now)
        blank = self._blanks if len(compared) == len(self._blanks) else self._blanks[: len(compared)]
        candidates = blank if self._plain else [self._candidate(i, demand, dispatcher, now) for i in compared]
        known = [found.forecast.last_token for found in candidates if found.forecast] if self.predicts else []
        predicted = min(known, default=0.0)
        draw, number = self._source.random(), self._numbers[dispatcher]
        choice = choose(self._dispatch.policy, candidates, draw, number=number)
        return DispatchDecision(compared[choice.index], compared, choice.loads, predicted)

    def _least_work(self, demand: WorkloadRequest, compared: list[int], dispatcher: int, now: float) -> DispatchDecision:
        loads: list[object] = []
        work: dict[str, int] = {}
        every, variants = self._homes[demand.model], self.variants.equivalents[demand.model]
        ways = [(i, every[i]) for i in compared] + [
            (i, self._homes[m][i]) for m in variants for i in self.lent.get((demand.model, m), self.active[m])
        ]
        for i, route in ways:
            load = self.outstanding(i, dispatcher, now)
            loads.append(load)
            for hop in route.hops:
                work[hop.worker] = load
        routes = [route for _, route in ways]
        view, cached = PLAIN, dict[str, int]()
        size = self._instances[compared[0]].state.config.page_size if compared else 0
        if self._known is not None:
            cached = self._known.cached(demand, routes, size)
        if variants:
            view = self.variants.view(demand.prompt_tokens(), demand.salt, demand.total, ways)
        elif self._paces.slower or self._dispatch.kv_dispatch not in (OFF, LEAST_BUSY):
            known = weighed(self._dispatch.kv_dispatch, cached, copied_part(self._paces.unit, self.copy_seconds))
            view = RouteView(demand.prompt, demand.total - demand.prompt, self._paces, known)
        best = choose_route(
            routes, work, tokens=demand.total, capacity=self.capacity, variants=variants, view=view,
            seat=f"{dispatcher}" if self._dispatch.dispatchers > 1 else "",
        )  # fmt: skip
        at = next((at for at, route in enumerate(routes) if route is best), -1)
        assert at >= 0, "no route of some is the best"
        source = -1
        if self._known is not None:
            richest = copied_from(self._dispatch.kv_dispatch, routes[at], routes, cached)
            source = -1 if richest is None else compared[routes.index(richest)]
            self._known.note(demand, routes[at], size, self.capacity[routes[at].id] // size)
        serves = routes[at].application if routes[at].application != demand.model else ""
        return DispatchDecision(ways[at][0], [i for i, _ in ways], loads, source=source, serves=serves)

    def outstanding(self, i: int, dispatcher: int, now: float) -> int:
        """Return the tokens to compute at an instance, as far as a dispatcher knows."""
        if self._knows_own:
            return self._own[dispatcher][i]
        if not self._reckons and not self._dispatch.staleness:
            return self._instances[i].outstanding(now)
        look = self._look(i, now)
        return look.outstanding + sum(one.submission.max_length for one in self._in_flight(i, look, dispatcher))

    # a dispatcher's knowledge of an instance ------------------------------------------------------------------------

    def _look(self, i: int, now: float) -> InstanceSnapshot:
        """Return the last look, or a new one if that is too old."""
        look, instance = self._looks[i], self._instances[i]
        if look is None or now >= look.at + self._dispatch.staleness:
            if self._dispatch.policy == LEAST_WORK:
                look = InstanceSnapshot(now, self._blanks[0], instance.outstanding(now), None)
            else:
                look = InstanceSnapshot(
                    now, instance.candidate(now), 0, self._forecaster(instance, now) if self.predicts else None
                )
            self._looks[i] = look
        return look

    def _forecaster(self, instance: Instance | PipelineInstance, now: float) -> Forecaster:
        made = instance.forecaster(now, self._dispatch.correction, spread=self._dispatch.spread)
        return made.fork() if self._dispatch.staleness else made  # it will be asked again when the instance has advanced

    def _in_flight(self, i: int, look: InstanceSnapshot, dispatcher: int) -> list[InFlightRequest]:
        """Return the requests in flight that this dispatcher knows and the look does not show."""
        if not self._reckons:
            return []
        flying = self._flying[i]
        while flying and flying[0].shown < look.at:
            flying.popleft()
        return [one for one in flying if self._dispatch.in_flight == "shared" or one.dispatcher == dispatcher]

    def _candidate(self, i: int, demand: WorkloadRequest, dispatcher: int, now: float) -> Candidate:
        look = self._look(i, now)
        candidate, flying = look.candidate, self._in_flight(i, look, dispatcher)
        if i in self.outside:
            waiting, blocks = self.outside[i]
            candidate = replace(
                candidate, waiting=candidate.waiting + waiting, waiting_blocks=candidate.waiting_blocks + blocks
            )
        candidate = candidate.of_one(self.devices.get(i, 1))
        if self._counts:
            sent = self._sent[dispatcher][i]
            while sent and sent[0] <= now - MINUTE:
                sent.popleft()
            candidate = replace(candidate, sent_last_minute=len(sent))
        if flying:
            candidate = replace(
                candidate, in_flight=len(flying), waiting=candidate.waiting + len(flying),
                waiting_blocks=candidate.waiting_blocks + sum(one.blocks for one in flying),
            )  # fmt: skip
        if self.predicts:
            candidate = replace(candidate, forecast=self._forecast(i, demand, look, flying))
        return candidate

    def _forecast(
        self, i: int, demand: WorkloadRequest, look: InstanceSnapshot, flying: Sequence[InFlightRequest]
    ) -> Forecast:
        """Return a forecast for the request, as if it came at the time of the look."""
        assert look.forecaster is not None, "no forecast was to be wanted"
        forecaster = look.forecaster.joined([one.submission for one in flying]) if flying else look.forecaster
        found = forecaster.forecast(self._submission(i, demand, demand.model), delays=POLICIES[self._dispatch.policy].delays)
        if not self._dispatch.forecast_error:
            return found
        wrong = clipped(self._errors.gauss(1.0, self._dispatch.forecast_error))
        return replace(
            found, first_token=wrong * found.first_token, last_token=wrong * found.last_token, delayed=wrong * found.delayed
        )

    def _submission(self, i: int, demand: WorkloadRequest, model: str) -> Submission:
        config = self._instances[i].state.config
        route, drafts = self._routes[i][model].id, self._drafts[model]
        return demand.submission(route, config.page_size, hashed=config.prefix_cache, timeout=0.0, drafts=drafts)
