"""Simulation of a cluster under virtual time: requests arrive and go to instances, and their sweeps end one after the other.

Discrete events in one heap. An event costs work only for the instance that it concerns, however many there are. Nothing is
random except what a seed draws, and no order depends on hashes, so equal scenarios have equal logs.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..policies.model.chain import Route
from ..policies.model.lineage import page_hashes
from ..policies.plan.coefficients import Coefficients
from ..policies.prediction.instance import IDLE, Instance
from ..policies.prediction.machines import LinkTimes
from ..policies.prediction.pipeline_instance import PipelineInstance
from ..policies.requests import kv_dispatch
from ..policies.requests.absent import LEAST_WASTE, PERIOD, AbsentConversations
from ..policies.sweep.events import Submission
from ..policies.sweep.page_events import PagesArrived
from .absent import SimulatedAbsences
from .bulk import BulkLinks
from .copies import SimulatedCopies
from .description import Scenario
from .drafts import draft_figures
from .instances import InstanceMaker
from .kv import KvCopies
from .provisioning import PaidInstances
from .simulated_gateway import DispatchDecision, SimulatedGateway
from .workload import WorkloadRequest

Note = Callable[[dict[str, Any]], None]  # receives a decision, or the result of a request
# events at equal times, in their order, after an arrival
_DELIVERY = 1
_END = 2
_SAMPLE = 3
_CALL = 4
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
    restarts: int = 0  # times that it was sent again, since its instance had died or stopped
    serves: str = ""  # the equivalent model whose chain it is on, or ended on; empty: its own
    switches: int = 0  # times that it went over to another chain while it ran
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The state of the cluster at one time."""

    at: float
    running: int
    waiting: int
    memory: list[float]  # share of KV in use, by instance


class ClusterPolicy:
    """The decisions in a simulated cluster beyond the choice of an instance; owns what moves and changes meanwhile.

    This one decides nothing. places: of the current instances. retired: instances that have stopped.
    """

    places: Sequence[int]
    retired: Sequence[Instance | PipelineInstance] = ()

    def admits(self, request: SimulatedRequest) -> bool:
        """Return whether an accepted request can be dispatched now; otherwise the policy dispatches it later."""
        return True

    def placed(self, request: SimulatedRequest, placing: DispatchDecision) -> DispatchDecision:
        """Return the decision on a request's instance, which may be another one now."""
        return placing

    def redirect(self, place: int, submission: Submission) -> tuple[int, Submission] | None:
        """Return the place where a submission goes, in the form that it has there; None holds it back."""
        return place, submission

    def before_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Prepare for the news of an instance."""

    def after_news(self, place: int, news: Sequence[tuple[str, str]]) -> None:
        """Act on the news of an instance, which the cluster has handled."""

    def finish(self) -> None:
        """End what is left when nothing happens any more."""

    def report(self) -> dict[str, object] | None:
        """Return the figures of what moved, as in ``docs/schemas/simulate.json``; None if nothing can."""
        return None

    def counts(self) -> dict[str, int] | None:
        """Return how often what happened under the controller, as in ``docs/schemas/simulate.json``; None without it."""
        return None


class ClusterSimulation:
    """One run. ``coefficients`` are for each entry of ``scenario.instances``. Raises NoCapacityError when made.

    ``policy`` makes the policy; without one, instances only preempt, and all are there from beginning to end. A scenario
    that is controlled needs the policy of ``assembly.py``.
    """

    def __init__(
        self,
        scenario: Scenario,
        coefficients: Sequence[Coefficients],
        demands: Sequence[WorkloadRequest],
        *,
        jumps: bool = True,
        note: Note | None = None,
        policy: Callable[[ClusterSimulation], ClusterPolicy] | None = None,
    ) -> None:
        assert policy is not None or not scenario.controlled, "the controller of a simulation is missing; see assembly.py"
        self.scenario = scenario
        self.requests = [SimulatedRequest(demand) for demand in demands]
        self.samples: list[ClusterSample] = []
        self._progress: Callable[[], None] | None = None
        self.now = 0.0
        self._note, self._limits = note, scenario.limits
        self._drafts = {model.name: model.drafts for model in scenario.models}
        self.maker = InstanceMaker(scenario, coefficients, jumps=jumps, loaded=not scenario.controlled)
        made = [self.maker.make(place) for place in range(len(self.maker.plans))]
        self.instances: list[Instance | PipelineInstance] = [instance for instance, _ in made]
        self.routes: list[dict[str, Route]] = [routes for _, routes in made]
        for place, instance in enumerate(self.instances):
            self.maker.check(place, instance)
        self._hashed = [instance.state.config.prefix_cache for instance in self.instances]
        self.gateway = SimulatedGateway(
            scenario.dispatch,
            scenario.limits,
            scenario.models,
            self.instances,
            self.routes,
            {name: chain for plan in self.maker.plans for name, chain in plan.chains.items()},
            scenario.seed,
            self.maker.paces(),
        )
        names = [instance.name for instance in self.instances]
        self.provisioner = PaidInstances(scenario.provisioning, names, scenario.outages.standing_by)
        first = range(self.provisioner.least)
        self.gateway.active = {m: [place for place in own if place in first] for m, own in self.gateway.active.items()}
        self._oldest = 0  # all requests before this one have ended
        self._heap: list[tuple[float, int, int, int]] = []  # time, kind, number of an instance or a request, instance
        self._submissions: dict[int, Submission] = {}  # on their way
        self.due = [IDLE] * len(self.instances)  # the ends that are in the heap
        self.frozen: set[int] = set()  # places of instances that make no progress
        self._calls: dict[int, Callable[[], None]] = {}  # pending calls, by number
        self._called = 0
        self.policy: ClusterPolicy | None = None
        if policy is not None:
            self.policy = policy(self)
        self.kv_copies = self._copies_of_kv() if scenario.dispatch.kv_dispatch != kv_dispatch.OFF else None
        self.absences = self._absences()
        self.copies = SimulatedCopies() if scenario.redundant_pages else None
        if self.copies is not None:
            self.call(scenario.redundant_pages, self._look_at_copies)

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
            elif kind == _CALL:
                self._calls.pop(number)()
            else:
                self._sample()
        if self.policy is not None:
            self.policy.finish()

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
            self.fail(request, refused, "refused")
            return
        self.gateway.begin(demand.model)
        if self.policy is None or self.policy.admits(request):
            self.dispatch(request)

    def fail(self, request: SimulatedRequest, why: str, what: str = "failed") -> None:
        """End a request that no instance has."""
        request.failed, request.ended = why, self.now
        self._tell(what, request.demand.number, why=why)
        self._ended()

    def dispatch(self, request: SimulatedRequest, again: Submission | None = None) -> None:
        """Send a request to an instance. ``again``: its submission, with the tokens so far, if it was at another one."""
        demand, now = request.demand, self.now
        placing = self.gateway.choose(demand, now)
        if self.gateway.predicts:  # a forecast advances an instance to the current time, and cuts its jump short
            for compared in placing.compared:
                self.schedule(compared)
        if self.policy is not None:
            placing = self.policy.placed(request, placing)
        self.send(request, placing, again)

    def send(self, request: SimulatedRequest, placing: DispatchDecision, again: Submission | None = None) -> None:
        """Carry out a dispatch decision; ``again`` as for ``dispatch``."""
        demand, now = request.demand, self.now
        place, instance = placing.place, self.instances[placing.place]
        if placing.source >= 0 and self.kv_copies is not None:
            source = self.instances[placing.source]
            assert isinstance(source, Instance), "KV is copied from a pipeline"
            assert isinstance(instance, Instance), "KV is copied to a pipeline"
            self.kv_copies.send(source, instance, demand, now)
        if self.absences is not None:
            self.absences.begin(demand, place, instance.state.config.page_size)
        request.instance, request.serves = instance.name, placing.serves
        model = placing.serves or demand.model
        if self._note is not None:
            names = [self.instances[i].name for i in placing.compared]
            serves = {"serves": placing.serves} if placing.serves else {}
            self._tell("dispatched", demand.number, instance=instance.name, compared=names, loads=placing.loads, **serves)
        route, hashed = self.routes[place][model].id, self._hashed[place]
        size = instance.state.config.page_size
        if again is None:
            limit = self._limits.request_timeout
            timeout = max(limit - (now - demand.at), 1e-9) if limit else 0.0
            submission = demand.submission(route, size, hashed=hashed, timeout=timeout, drafts=self._drafts[model])
        else:
            hashes = page_hashes(again.tokens, size, again.salt) if hashed else []
            submission = replace(again, route=route, attempt=again.attempt + 1, page_hashes=hashes)
        self.gateway.variants.note(place, self.routes[place][model], submission)
        if self._limits.latency:
            self._submissions[demand.number] = submission
            heapq.heappush(self._heap, (now + self._limits.latency, _DELIVERY, demand.number, place))
        else:
            self.deliver(place, submission)

    def replace(self, place: int, instance: Instance | PipelineInstance, routes: dict[str, Route]) -> None:
        """Put another instance at a place."""
        self.instances[place], self.routes[place] = instance, routes
        self.due[place] = IDLE
        self.frozen.discard(place)
        devices = len(instance.machines) if isinstance(instance, PipelineInstance) else 1
        self.gateway.replaced(place, devices)

    def one_stage(self, place: int) -> Instance:
        """Return the instance at a place at the state that it has now, where all have one stage."""
        instance = self.instances[place]
        assert isinstance(instance, Instance), "an instance has several stages"
        instance.catch_up(self.now)
        self.schedule(place)
        return instance

    def freeze(self, place: int) -> None:
        """Have the instance at a place make no progress from now on, until another one is put there."""
        instance = self.instances[place]
        if isinstance(instance, Instance):
            instance.catch_up(self.now)
        self.due[place] = IDLE
        self.frozen.add(place)

    def oldest(self) -> SimulatedRequest | None:
        """Return the oldest request that has not ended."""
        return None if self.ended else self.requests[self._oldest]

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
                self.gateway.forget(number)
                if self.absences is not None:
                    self.absences.end(request.demand, place, instance.state.config.page_size, now)
                self._ended()
            self._tell(what, number, instance=instance.name)
        self.schedule(place)
        if self.policy is not None:
            self.policy.after_news(place, news)

    def schedule(self, place: int) -> None:
        """Put the end of an instance's sweep into the heap if it has changed."""
        instance = self.instances[place]
        if instance.due != self.due[place] and place not in self.frozen:
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

    def control(self) -> dict[str, int] | None:
        """Return the controller's figures; None without one."""
        return None if self.policy is None else self.policy.counts()

    def drafts(self) -> dict[str, float] | None:
        """Return the figures of drafts; None if no model has any."""
        return draft_figures(self.served) if any(self._drafts.values()) else None

    def variants(self) -> dict[str, int] | None:
        """Return how many requests another model's chain answered, and the switches; None if no model has equivalents."""
        if not self.scenario.varied:
            return None
        served = sum(bool(one.serves) and not one.failed for one in self.requests)
        return {"requests": served, "switches": sum(one.switches for one in self.requests)}

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

    def _copies_of_kv(self) -> KvCopies:
        links = self.scenario.links
        bandwidth = links.bandwidth or 1.0  # recompute copies nothing
        self.gateway.copy_seconds = self.scenario.models[0].kv_bytes / bandwidth
        return KvCopies(BulkLinks(LinkTimes(links.latency, bandwidth), bandwidth, self.call), self._receive)

    def _receive(self, instance: Instance, pages: PagesArrived) -> float:
        """Take in pages that have arrived at an instance; return the time."""
        instance.receive(pages, self.now)
        self.schedule(self.instances.index(instance))
        return self.now

    def _absences(self) -> SimulatedAbsences | None:
        """Return the conversations that are away, if anything is decided about them."""
        spec = self.scenario.dispatch
        away = AbsentConversations(proactive=spec.proactive_copies, cold=spec.cold_kv == LEAST_WASTE)
        if self.kv_copies is None or not away.wanted:
            return None
        self.call(PERIOD, self._look_at_absent)
        return SimulatedAbsences(away, self.gateway, self.kv_copies, self.routes, self.schedule)

    def _look_at_absent(self) -> None:
        assert self.absences is not None, "nothing is decided"
        self.absences.look([one for one in self.instances if isinstance(one, Instance)], self.now)
        if not self.ended:
            self.call(self.now + PERIOD, self._look_at_absent)

    def _look_at_copies(self) -> None:
        """Mark redundant pages, and do so again as long as requests are left."""
        assert self.copies is not None, "nothing is to be marked"
        places = range(len(self.instances)) if self.policy is None else self.policy.places
        for place in sorted(self.copies.look({place: self.instances[place] for place in places}, self.now)):
            self.schedule(place)
        if not self.ended:
            self.call(self.now + self.scenario.redundant_pages, self._look_at_copies)

    def _sample(self) -> None:
        loads = [instance.candidate(self.now) for instance in self.serving]
        running, waiting = sum(load.running for load in loads), sum(load.waiting for load in loads)
        waiting += self.gateway.held + sum(count for count, _ in self.gateway.outside.values())
        memory = [load.used_blocks / max(load.total_blocks, 1) for load in loads]
        self.samples.append(ClusterSample(self.now, running, waiting, memory))


def sample_count(instances: int, requests: int) -> int:
    """Return the number of equal intervals between samples: fewer if there are many instances.

    Each sample reads all instances: 120 samples of 1,000 instances took a tenth of a run of 12,000 requests.
    """
    return max(FEWEST_SAMPLES, min(SAMPLES, max(LOOKS, requests) // instances))
