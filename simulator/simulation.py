"""Simulation of a cluster under virtual time: requests arrive and go to instances, and their sweeps end one after the other.

Discrete events in one heap. An event costs work only for the instance that it concerns, however many there are. Nothing is
random except what a seed draws, and no order depends on hashes, so equal scenarios have equal logs.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import IDLE, Instance
from ..policies.prediction.machines import LinkTimes
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests.routes_changed import RoutesChanged
from ..policies.sweep.config import SweepConfig
from ..policies.sweep.events import Submission
from .description import InstanceSpec, ModelSpec, Scenario
from .drafts import DraftOutcomes, draft_figures
from .provisioning import InstanceChange, Provisioner
from .simulated_gateway import DispatchDecision, SimulatedGateway
from .workload import WorkloadRequest

Note = Callable[[dict[str, Any]], None]  # receives a decision, or the result of a request
# events at equal times, in their order, after an arrival
_DELIVERY = 1
_END = 2
_SAMPLE = 3
_READY = 4
_CALL = 5
SAMPLES, FEWEST_SAMPLES = 120, 12  # samples of the cluster's state while requests arrive
LOOKS = 12_000  # most readings of instances in all samples together; more only if there are more requests


@dataclass(slots=True)
class SimulatedRequest:
    """The outcome of a demand. Times are in seconds from the beginning, as the client sees them."""

    demand: WorkloadRequest
    instance: str = ""
    started: float = -1.0  # at the instance
    first: float = -1.0
    ended: float = -1.0
    preemptions: int = 0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The state of the cluster at one time."""

    at: float
    running: int
    waiting: int
    memory: list[float]  # share of KV in use, by instance


class NoCapacityError(ValueError):
    """The memory of an entry of ``instances`` holds no KV beside the parameters. ``entry`` is its number."""

    def __init__(self, entry: int, spec: InstanceSpec, held: int, page: int) -> None:
        beside = f" beside {held:,} bytes of parameters" if held else ""
        super().__init__(
            f"is {spec.memory:,}; it holds no page of KV ({page:,} bytes, in chunks of memory_chunk){beside}; give more"
        )
        self.entry = entry


class KvShortagePolicy(Protocol):
    """A policy of a simulated cluster for a shortage of KV memory, besides preemption. It owns what moves meanwhile."""

    @property
    def places(self) -> Sequence[int]:
        """The places of the current instances."""

    @property
    def retired(self) -> Sequence[Instance | PipelineInstance]:
        """The instances that have stopped."""

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Return the place where a submission goes, in the form that it has there; None holds it back."""

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Prepare for the news of an instance."""

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Act on the news of an instance, which the cluster has handled."""

    def report(self) -> dict[str, object]:
        """Return the figures, as in ``docs/schemas/simulate.json``."""


class ClusterSimulation:
    """One run. ``coefficients`` are for each entry of ``scenario.instances``. Raises NoCapacityError when made.

    ``policy`` makes the policy for a shortage of KV; without one, instances only preempt.
    """

    def __init__(
        self,
        scenario: Scenario,
        coefficients: Sequence[Coefficients],
        demands: Sequence[WorkloadRequest],
        *,
        jumps: bool = True,
        note: Note | None = None,
        policy: Callable[[ClusterSimulation], KvShortagePolicy] | None = None,
    ) -> None:
        self.scenario = scenario
        self.requests = [SimulatedRequest(demand) for demand in demands]
        self.samples: list[ClusterSample] = []
        self._progress: Callable[[], None] | None = None
        self.instances: list[Instance | PipelineInstance] = []
        self.now = 0.0
        self._note, self._limits = note, scenario.limits
        self._drafts = {model.name: model.drafts for model in scenario.models}
        drafts = {name: spec for name, spec in self._drafts.items() if spec is not None}
        accept = DraftOutcomes(scenario.seed, drafts) if drafts else None
        self.routes: list[dict[str, Route]] = []
        for entry, (spec, found) in enumerate(zip(scenario.instances, coefficients, strict=True)):
            chains = [chain_of(model, spec) for model in scenario.models]
            for n in range(spec.count):
                name = f"{spec.name}-{n}" if spec.count > 1 else spec.name
                configs = sweep_configs(name, spec, scenario.models)
                hops = hops_of([config.worker for config in configs])
                routes = {c.application: Route(f"{c.application}@{name}", 1, c.application, hops) for c in chains}
                event = RoutesChanged(1, chains, [*routes.values()], [*routes.values()])
                if spec.stages == 1:
                    self.instances.append(Instance(configs[0], event, found, ahead=spec.ahead, jumps=jumps, accept=accept))
                else:
                    links = LinkTimes(scenario.links.latency, scenario.links.bandwidth)
                    costs = sized(found, scenario.models[0])
                    self.instances.append(
                        PipelineInstance(name, configs, event, costs, links, ahead=spec.ahead, accept=accept)
                    )
                self.routes.append(routes)
            if not self.instances[-1].total_blocks:
                held = sum(model.own if model.shares else model.parameters for model in scenario.models)
                page = scenario.models[0].kv_bytes * spec.page_size
                raise NoCapacityError(entry, spec, held // spec.stages, page // spec.stages)
        self._hashed = [instance.state.config.prefix_cache for instance in self.instances]
        self.gateway = SimulatedGateway(
            scenario.dispatch, scenario.limits, scenario.models, self.instances, self.routes, scenario.seed
        )
        self.provisioner = Provisioner(scenario.provisioning, [instance.name for instance in self.instances])
        self.gateway.active = self.provisioner.active
        self._oldest = 0  # all requests before this one have ended
        self._heap: list[tuple[float, int, int, int]] = []  # time, kind, number of an instance or a request, instance
        self._submissions: dict[int, Submission] = {}  # on their way
        self.due = [IDLE] * len(self.instances)  # the ends that are in the heap
        self._calls: dict[int, Callable[[], None]] = {}  # pending calls, by number
        self._called = 0
        self.policy: KvShortagePolicy | None = None
        if policy is not None:
            self.policy = policy(self)

    def run(self, progress: Callable[[], None] | None = None) -> None:
        """Run until the last request has ended. ``progress`` is called for each one that has.

        The garbage collector is off meanwhile: there are no reference cycles here, and scanning all instances again and
        again would take longer than simulating them.
        """
        self._progress = progress
        collects = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            if collects:
                gc.enable()

    def _run(self) -> None:
        demands = self.requests
        heap = self._heap
        at = 0
        left = len(self.requests)
        last = demands[-1].demand.at if demands else 0.0
        samples = sample_count(len(self.instances), left)
        for n in range(samples + 1):
            heapq.heappush(heap, (last * n / samples, _SAMPLE, n, 0))
        while heap or at < left:
            if at < left and (not heap or demands[at].demand.at <= heap[0][0]):
                self.now = demands[at].demand.at
                self._arrive(demands[at])
                at += 1
                continue
            self.now, kind, number, place = heapq.heappop(heap)
            if kind == _END:
                if self.now == self.due[number]:
                    self.due[number] = IDLE
                    self.news(number, self.instances[number].finish())
            elif kind == _DELIVERY:
                self.deliver(place, self._submissions.pop(number))
            elif kind == _READY:
                self._changed(self.provisioner.ready(number, self.now))
            elif kind == _CALL:
                self._calls.pop(number)()
            else:
                self._sample()

    def call(self, at: float, what: Callable[[], None]) -> None:
        """Schedule a function at a time, after everything else that happens then."""
        self._called += 1
        self._calls[self._called] = what
        heapq.heappush(self._heap, (at, _CALL, self._called, 0))

    def digest(self) -> str:
        """Return a digest that is equal for equal outcomes."""
        outcomes = [(r.instance, r.started, r.first, r.ended, r.preemptions, r.failed) for r in self.requests]
        return hashlib.blake2b(repr(outcomes).encode(), digest_size=16).hexdigest()

    def _arrive(self, request: SimulatedRequest) -> None:
        demand, now = request.demand, self.now
        if refused := self.gateway.refusal(demand, now):
            request.failed, request.ended = refused, now
            self._tell("refused", demand.number, why=refused)
            self._ended()
            return
        self._look_at_ages()
        placing = self.gateway.begin(demand, now)
        if self.gateway.predicts:  # a forecast advances an instance to the current time, and cuts its jump short
            for compared in placing.compared:
                self.schedule(compared)
        placing = self._provision(placing)
        place, instance = placing.place, self.instances[placing.place]
        self.provisioner.dispatched(place)
        request.instance = instance.name
        if self._note is not None:
            names = [self.instances[i].name for i in placing.compared]
            self._tell("dispatched", demand.number, instance=instance.name, compared=names, loads=placing.loads)
        route, timeout = self.routes[place][demand.model].id, self._limits.request_timeout
        size = instance.state.config.page_size
        submission = demand.submission(
            route, size, hashed=self._hashed[place], timeout=timeout, drafts=self._drafts[demand.model]
        )
        if self._limits.latency:
            self._submissions[demand.number] = submission
            heapq.heappush(self._heap, (now + self._limits.latency, _DELIVERY, demand.number, place))
        else:
            self.deliver(place, submission)

    def _look_at_ages(self) -> None:
        """Report the age of the oldest unfinished request to the provisioner.

        This comes first, so that no request is sent to an instance that is drained now.
        """
        while self.requests[self._oldest].ended >= 0:
            self._oldest += 1
        for change in self.provisioner.tick(self.now, measured=self.now - self.requests[self._oldest].demand.at):
            self._changed(change)

    def _provision(self, placing: DispatchDecision) -> DispatchDecision:
        """Start an instance if a forecast asks for one. If it is ready at once it gets the request, as in the paper."""
        for change in self.provisioner.tick(self.now, predicted=placing.predicted) if self.gateway.predicts else ():
            self._changed(change)
            if change.what == "active":
                known = len(placing.loads)  # the compared list may be the list of active instances, which is longer now
                compared, loads = [*placing.compared[:known], change.place], [*placing.loads, None]
                placing = replace(placing, place=change.place, compared=compared, loads=loads)
        return placing

    def _changed(self, change: InstanceChange) -> None:
        if change.what == "starting" and (cold := self.provisioner.spec.cold_start):
            heapq.heappush(self._heap, (self.now + cold, _READY, change.place, 0))
        name = self.instances[change.place].name
        self.record({"at": self.now, "what": change.what, "instance": name, "why": change.why})

    def deliver(self, place: int, submission: Submission) -> None:
        """Hand a submission to the instance at a place, or to where the policy redirects it."""
        if self.policy is not None:
            if (redirected := self.policy.redirect(place, submission)) is None:
                return
            place, submission = redirected
        demand = self.requests[int(submission.request[1:])].demand
        ends = demand.prompt + demand.output if demand.allowed else 0
        self.news(place, self.instances[place].submit(submission, self.now, ends))

    def news(self, place: int, news: list[tuple[str, str]]) -> None:
        """Handle the news of an instance that has changed."""
        if self.policy is not None:
            self.policy.before_news(place, news)
        instance, now = self.instances[place], self.now
        for id, what in news:
            number = int(id[1:])
            request = self.requests[number]
            if what == "started":
                if request.started < 0:
                    request.started = now
            elif what == "first":
                request.first = request.first if request.first >= 0 else now + self._limits.latency
            elif what == "preempted":
                request.preemptions += 1
            else:
                request.ended = now + self._limits.latency
                request.failed = "" if what == "finished" else what
                self.gateway.end(request.demand.model, now)
                self._ended()
                if (stopped := self.provisioner.ended(place, now)) is not None:
                    self._changed(stopped)
                for change in self.provisioner.tick(now, measured=request.ended - request.demand.at):
                    self._changed(change)
            self._tell(what, number, instance=instance.name)
        self.schedule(place)
        if self.policy is not None:
            self.policy.after_news(place, news)

    def schedule(self, place: int) -> None:
        """Put the end of an instance's sweep into the heap if it has changed."""
        instance = self.instances[place]
        if instance.due != self.due[place]:
            self.due[place] = instance.due
            if instance.due < IDLE:
                heapq.heappush(self._heap, (instance.due, _END, place, 0))

    def _ended(self) -> None:
        if self._progress is not None:
            self._progress()

    def _tell(self, what: str, number: int, **more: Any) -> None:
        if self._note is not None:
            self._note({"at": self.now, "what": what, "request": number, **more})

    def record(self, entry: dict[str, Any]) -> None:
        """Report a decision."""
        if self._note is not None:
            self._note(entry)

    def overload(self) -> dict[str, object] | None:
        """Return the policy's figures; None without a policy."""
        return None if self.policy is None else self.policy.report()

    def drafts(self) -> dict[str, float] | None:
        """Return the figures of drafts; None if no model has any."""
        return draft_figures(self.instances) if any(self._drafts.values()) else None

    @property
    def served(self) -> list[Instance | PipelineInstance]:
        """All instances that there were."""
        return self.instances if self.policy is None else [*self.policy.retired, *self.serving]

    @property
    def serving(self) -> list[Instance | PipelineInstance]:
        """The current instances."""
        return self.instances if self.policy is None else [self.instances[place] for place in self.policy.places]

    @property
    def ended(self) -> bool:
        """True once all requests have ended."""
        while self._oldest < len(self.requests) and self.requests[self._oldest].ended >= 0:
            self._oldest += 1
        return self._oldest == len(self.requests)

    def _sample(self) -> None:
        loads = [instance.candidate(self.now) for instance in self.serving]
        running, waiting = sum(load.running for load in loads), sum(load.waiting for load in loads)
        waiting += sum(count for count, _ in self.gateway.outside.values())
        memory = [load.used_blocks / load.total_blocks for load in loads]
        self.samples.append(ClusterSample(self.now, running, waiting, memory))


def sample_count(instances: int, requests: int) -> int:
    """Return the number of equal intervals between samples: fewer if there are many instances.

    Each sample reads all instances: 120 samples of 1,000 instances took a tenth of a run of 12,000 requests.
    """
    return max(FEWEST_SAMPLES, min(SAMPLES, max(LOOKS, requests) // instances))


def chain_of(model: ModelSpec, spec: InstanceSpec) -> Chain:
    """Return a model's chain with all layers of a device as one component.

    Pages have the same bytes then, and one slot instead of one for each layer.
    """
    layout = KvLayout(1, model.kv_bytes // 4 // spec.stages, "bfloat16", spec.page_size)
    body = model.parameters - model.embedding - model.head
    layers = [(Kind.ATTENTION, body * (n + 1) // spec.stages - body * n // spec.stages, layout) for n in range(spec.stages)]
    kinds = ((Kind.EMBEDDING, model.embedding, None), *layers, (Kind.HEAD, model.head, None))
    parts = tuple(
        Component(_identity(model, depth), kind, nbytes, 1, max(1, model.hidden_bytes), kv)
        for depth, (kind, nbytes, kv) in enumerate(kinds)
    )
    if model.own:
        deltas = [model.own * (n + 1) // spec.stages - model.own * n // spec.stages for n in range(spec.stages)]
        changed = [part.variant(_hash(f"{model.name}/{n}"), deltas[n]) for n, part in enumerate(parts[1:-1])]
        parts = (parts[0], *changed, parts[-1])
    return Chain(model.name, (Block(parts),), model.context)


def _identity(model: ModelSpec, depth: int) -> bytes:
    """Return the same identity for a model and the models that share its parameters."""
    return _hash(f"{model.shares or model.name}/{depth}")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def held_bytes(components: Iterable[Component]) -> int:
    """Return the memory of parameters on one device. Parameters that several models share count once."""
    shared, deltas = dict[bytes, int](), dict[bytes, int]()
    for component in components:
        shared[component.shared] = component.nbytes
        if component.delta:
            deltas[component.delta] = component.delta_nbytes
    return sum(shared.values()) + sum(deltas.values())


def hops_of(devices: Sequence[str]) -> tuple[Hop, ...]:
    """Return the hops of a pipeline. The first device has the embedding, the last one the head."""
    last = len(devices) - 1
    return tuple(Hop(name, n + (n > 0), n + 2 + (n == last)) for n, name in enumerate(devices))


def sweep_configs(name: str, spec: InstanceSpec, models: Sequence[ModelSpec]) -> list[SweepConfig]:
    """Return the configurations of an instance's devices. ``blocks`` are mapped all at once."""
    found, last = [], spec.stages - 1
    chains = [chain_of(model, spec) for model in models]
    for n, hop in enumerate(hops_of([""] * spec.stages)):
        held = held_bytes(component for chain in chains for component in chain.components[hop.first : hop.last])
        budget, chunk = spec.memory - held, spec.memory_chunk
        if spec.blocks:
            budget = chunk = spec.blocks * models[0].kv_bytes // spec.stages * spec.page_size
        found.append(
            SweepConfig(
                worker=f"{name}.{n}" if last else name,
                numerics="simulated",
                budget=max(budget, 0),
                slot_unit=1,
                granule=1,
                memory_chunk=chunk,
                page_size=spec.page_size,
                chunk_size=spec.chunk_size,
                sweep_tokens=spec.sweep_tokens,
                max_rows=spec.max_rows,
                prefix_cache=spec.prefix_cache,
                class_ageing=spec.class_ageing,
            )
        )
    return found


def sized(costs: Coefficients, model: ModelSpec) -> Coefficients:
    """Return coefficients with the sizes of their model; each device of a pipeline has a part of it."""
    if costs.parameters:
        return costs
    return replace(costs, parameters=float(model.parameters - model.embedding), kv=float(model.kv_bytes))
