"""Scaling: workers started and drained with the load, and workers that join and leave by themselves.

``policies/cluster/provisioning.py`` decides when. A new worker is known to the controller at once: its blocks load before
its routes come into force, as for any worker. A worker that goes is *drained* first: gateways start nothing there. It is
forgotten once nothing is left there and only then stopped, so that its end counts as no death. A worker drained by an
operator is emptied the same way and stays. A worker that has joined is placed as a new one is, and is forgotten when it dies
or has been emptied, since no supervisor of ours brings it back; it counts for scaling only where an engine starts workers by
itself, and scaling is a wish. A worker that a launcher started elsewhere may be asked to end there: it is emptied, ended,
and started again as after a death; one whose program cannot be run is given up after a while. Claims the drains, and the
routes of the workers that it starts. Owns the policy for workers, and the sets of workers that an operator drained and that
leave.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cluster.draining import needed_by, relied_on, spare
from ..cluster.launching import HOPELESS, cannot_run
from ..cluster.provisioning import DrainOne, Provisioning, ProvisioningRules, StartOne, Wish, WorkerStage
from ..requests.dispatch import workers_of
from .claims import Claim, Claimant, ClaimKind, Discharge, Enlist, Label, PlanRoutes, Withdrawal
from .drop_events import MemoryLacks
from .events import (
    DrainWorker,
    Event,
    GiveUpWorker,
    HeadChanged,
    KillWorker,
    Observed,
    ResumeWorker,
    StartWorker,
    StopWorker,
    Vacated,
    VacateWorker,
    WishWorkers,
    WorkerDown,
    WorkerEnters,
    WorkerLeaves,
    WorkerStopped,
)
from .holdings import Holdings
from .party import Conclusions, Party

BY_OPERATOR = "an operator asked for it"


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """The limits of scaling.

    workers: all possible workers; the first ``rules.least`` exist from the start. grace: seconds that requests have to end
    on a drained worker. launcher: who starts the others, as the settings name it. labels: of those.
    """

    rules: ProvisioningRules = field(default_factory=ProvisioningRules)
    workers: Sequence[str] = ()
    grace: float = 30.0
    launcher: str = "local"
    labels: Mapping[str, str] = field(default_factory=dict)


class Scaling(Party):
    """The scaling of one cluster (see the module)."""

    def __init__(self, plan: ScalingPlan) -> None:
        self._plan = plan
        self.policy = Provisioning(plan.rules, plan.workers)
        self.drained: set[str] = set()  # workers drained by an operator
        self.leaving: set[str] = set()  # workers that had joined and leave, or have died
        self.unstarted: dict[str, int] = {}  # worker -> starts in a row whose program could not be run
        self.given_up: set[str] = set()  # workers that are started no more, unless that is ordered
        self.last: tuple[float, str, str] | None = None  # last decision about a worker: when, what, why
        self.decisions = {"start": 0, "drain": 0}

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case Observed(measured, predicted):
                self.policy.observe(now, measured=measured, predicted=predicted)
            case MemoryLacks(_, why):
                self.policy.lacking(why)
            case HeadChanged():
                return self._order_again(view, now)
            case WorkerEnters(worker, labels) if worker not in view.workers:
                return self._take_in(worker, labels, view)
            case WorkerEnters(worker, labels) if not view.workers[worker].joined:
                return (Label(worker, labels),)
            case WorkerLeaves(worker, why) if worker in view.workers and view.workers[worker].extra:
                return self._leave(worker, why, self._plan.grace, view, now)
            case WorkerDown(worker, _, cause) if view.workers[worker].joined:
                return self._leave(worker, f"it died: {cause}", 0.0, view, now)
            case Vacated(worker) if worker in self.leaving:
                return self._forget(worker, view)
            case DrainWorker(worker, False) if worker in self.given_up:
                self._take_up(worker)
                return (StartWorker(worker, BY_OPERATOR),)
            case DrainWorker(worker, drain) if worker in view.workers and drain != (worker in self.drained):
                return self._drain(worker, drain)
            case Vacated(worker) if worker in view.workers and self.policy.stage.get(worker) is WorkerStage.DRAINING:
                self.drained.discard(worker)
                return Discharge(worker), StopWorker(worker)
            case WorkerStopped(worker) if worker in self.policy.stage:
                self.policy.gone(worker, now)
            case WorkerDown(worker, _, cause):
                if worker in self.policy.stage:
                    self.policy.down(worker, now)
                return self._restart(worker, cause)
        return ()

    def _order_again(self, view: Holdings, now: float) -> Conclusions:
        """Order what the head before may not have got done: starts, drains and ends of workers.

        Of one that had joined it may have kept no more than the name, and both ended then.
        """
        for worker in [*self.given_up]:
            self._take_up(worker)
        for worker, record in view.workers.items():
            if record.extra and not record.joined:
                yield StartWorker(worker, "a new head has taken over")
        for worker in view.draining:
            grace = 0.0 if worker in self.leaving and not view.workers[worker].alive else self._plan.grace
            yield VacateWorker(worker, grace, view.claims.on(ClaimKind.DRAINED, worker)[Claimant.DRAINS])
        for worker in self.policy.draining:
            if worker not in view.workers:
                yield StopWorker(worker)
        for worker, record in view.workers.items():
            if record.joined and record.state == "down":
                yield from self._leave(worker, "it did not come to the new head", 0.0, view, now)

    def _take_in(self, worker: str, labels: Mapping[str, str], view: Holdings) -> Conclusions:
        """Place on a worker that has joined what fits there."""
        if not self._plan.rules.places:
            self.policy.entered(worker)
        yield Enlist(worker, joined=True, labels=labels)
        why = f"worker {worker} has joined"
        yield PlanRoutes(Claimant.SERVING, why, tuple(view.placement.on_new_worker(worker)))

    def _leave(self, worker: str, why: str, grace: float, view: Holdings, now: float) -> Conclusions:
        """Begin to empty a worker elsewhere that ends."""
        if worker in self.leaving:
            return
        self.leaving.add(worker)
        if view.workers[worker].joined:
            self.policy.left(worker, now)
            yield Claim(Claimant.DRAINS, ClaimKind.CLOSED, (worker,), why)
        yield Claim(Claimant.DRAINS, ClaimKind.DRAINED, (worker,), why)
        yield VacateWorker(worker, grace, why)

    def _forget(self, worker: str, view: Holdings) -> Conclusions:
        """Forget a worker that has left; place what had no route without it where there is room.

        One that a launcher started is ended instead, and its supervisor starts it again.
        """
        if not view.workers[worker].joined:
            yield KillWorker(worker, "it was asked to leave, and is empty")
            return
        self.leaving.discard(worker)
        self.drained.discard(worker)
        if routes := view.placement.of_stranded(worker):
            yield PlanRoutes(Claimant.SERVING, f"worker {worker} has left", tuple(routes))
        yield Discharge(worker)
        yield StopWorker(worker, joined=max(1, view.workers[worker].last))  # 0: it has a supervisor

    def _restart(self, worker: str, cause: str) -> Conclusions:
        """Let the next life of a worker serve, whose last one was asked to end; give up one whose program is not there."""
        if worker in self.leaving:
            self.leaving.discard(worker)
            if worker not in self.drained and worker not in self.policy.draining:
                yield Withdrawal(Claimant.DRAINS, ClaimKind.DRAINED, (worker,))
        if not cannot_run(cause):
            self.unstarted.pop(worker, None)
            return
        self.unstarted[worker] = self.unstarted.get(worker, 0) + 1
        if self.unstarted[worker] >= HOPELESS and worker not in self.given_up:
            self.given_up.add(worker)
            yield GiveUpWorker(worker, cause.removeprefix("not started: "))

    def _take_up(self, worker: str) -> None:
        self.unstarted.pop(worker, None)
        self.given_up.discard(worker)

    def _drain(self, worker: str, drain: bool) -> Conclusions:
        """Begin an operator's drain, or end it; the autoscaler's own goes on."""
        if drain:
            self.drained.add(worker)
            yield VacateWorker(worker, self._plan.grace, BY_OPERATOR)
            yield Claim(Claimant.DRAINS, ClaimKind.DRAINED, (worker,), BY_OPERATOR)
            return
        self.drained.discard(worker)
        yield ResumeWorker(worker)
        if worker not in self.policy.draining and worker not in self.leaving:
            yield Withdrawal(Claimant.DRAINS, ClaimKind.DRAINED, (worker,))

    def undrainable(self, worker: str, view: Holdings) -> str:
        """Return why a worker must not be drained: a sentence, or empty."""
        if view.dropped_on(worker):
            return "it serves as a part of a pipeline until a burst is over; wait for the restore"
        if worker in self.leaving:
            return "it leaves already"
        if worker not in self.drained and worker in view.draining:
            return "the autoscaler does that already, and stops it"
        if model := needed_by(worker, self._serving(view, view.draining)):
            return f"model {model} would have no route left; add a worker, or remove the model first"
        return ""

    def settle(self, view: Holdings, now: float) -> Conclusions:
        """Decide whether a worker is started or drained. Costs work for what changed, since heartbeats lead here too."""
        for name in view.changed:
            if self.policy.stage.get(name) is WorkerStage.STARTING and view.workers[name].state == "ready":
                self.policy.up(name, now)
            if (record := view.workers.get(name)) is not None and record.alive:
                self._take_up(name)
        if self._plan.rules.mode == "off" and not self._plan.rules.floor:
            return
        before = self.policy.wanted
        match self.policy.decide(now, lambda: self._work(view)):
            case StartOne(worker, why):
                self._decided(now, "start", f"start {worker}", why)
                yield Enlist(worker, labels=self._plan.labels)
                yield PlanRoutes(
                    Claimant.DRAINS, f"worker {worker} was added: {why}", tuple(view.placement.on_new_worker(worker))
                )
                yield StartWorker(worker, why)
            case DrainOne(worker, why):
                self._decided(now, "drain", f"drain {worker}", why)
                yield Claim(Claimant.DRAINS, ClaimKind.CLOSED, (worker,), why)
                yield Claim(Claimant.DRAINS, ClaimKind.DRAINED, (worker,), why)
                yield VacateWorker(worker, self._plan.grace, why)

            case Wish(workers, why):
                self._decided(now, "start" if workers > before else "drain", f"wish {workers}", why)
                yield WishWorkers(workers, why)

    def view(self, now: float, wall: float) -> dict[str, Any]:
        """Return the part of the cluster's view about scaling. ``wall``: seconds since the epoch at ``now``."""
        counts = {stage.value: self.policy.count(stage) for stage in WorkerStage if stage is not WorkerStage.OFF}
        rules, wanted = self._plan.rules, counts["starting"] + counts["active"]
        last = None
        if self.last is not None:
            at, decision, why = self.last
            last = {"at": round(wall - now + at, 3), "decision": decision, "why": why}
        bounds = {"least": rules.always, "most": rules.most or len(self._plan.workers)}
        found = {"mode": rules.mode, "limit": rules.limit, **bounds, "decisions": self.decisions, "last": last}
        asked = {"launcher": self._plan.launcher, "asked": wanted if self._plan.launcher == "local" else self.policy.wanted}
        return found | {"workers": {"wanted": wanted, **counts}, **asked}

    def _decided(self, now: float, what: str, decision: str, why: str) -> None:
        self.last = now, decision, why
        self.decisions[what] += 1

    def _work(self, view: Holdings) -> Mapping[str, float]:
        """Return the requests at each worker that can be spared. Workers of a burst's pipeline are left out."""
        free = {name: one for name, one in view.workers.items() if not (one.joined or view.dropped_on(name))}
        return spare({name: one.running + one.waiting for name, one in free.items()}, self._serving(view, ()))

    def _serving(self, view: Holdings, drained: Container[str]) -> dict[str, list[Sequence[str]]]:
        """Return, by application, the workers of each route that it relies on, except over ``drained`` workers."""
        return {
            name: relied_on(
                (workers_of(p.route), p.whole)
                for p in served.planned
                if not (p.suspended or any(one in drained for one in workers_of(p.route)))
            )
            for name, served in view.served.items()
            if served.deployed
        }

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when a claim has no reason any more."""
        draining = {*self.drained, *self.policy.draining, *self.leaving} & view.workers.keys()
        assert {*view.draining} == draining, "a worker is drained that no one wants drained"
