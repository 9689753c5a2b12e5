"""Scaling: blocks deployed once more for a burst, workers started and drained with the load.

``policies/cluster`` decides when: ``scaling.py`` for blocks, ``provisioning.py`` for workers. A new worker is known to the
controller at once: its blocks load before its routes come into force, as for any worker. A worker that goes is *paused*
first: gateways start nothing there. It is forgotten once nothing is left there and only then stopped, so that its end
counts as no death. A worker drained by an operator is emptied the same way and stays. Owns the policy for workers, and the
set of drained ones; ``state.py`` derives blocks and routes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..cluster.draining import needed_by, relied_on, spare
from ..cluster.provisioning import DrainOne, Provisioning, ProvisioningRules, StartOne, WorkerStage
from ..requests.dispatch import workers_of
from .events import (
    DrainWorker,
    Idle,
    Observed,
    Pressed,
    ResumeWorker,
    ScalingEvent,
    StartWorker,
    StopWorker,
    Vacated,
    VacateWorker,
    WorkerStopped,
)
from .holdings import Holdings
from .residency import PlannedRoute, Residency
from .worker_record import WorkerRecord


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """The limits of scaling.

    workers: all possible workers; the first ``rules.least`` exist from the start. grace: seconds that requests have to end
    on a drained worker.
    """

    rules: ProvisioningRules = field(default_factory=ProvisioningRules)
    workers: Sequence[str] = ()
    grace: float = 30.0


class Scaling:
    """The scaling of one cluster (see the module)."""

    def __init__(self, holdings: Holdings, plan: ScalingPlan) -> None:
        self._holdings, self._plan = holdings, plan
        self.policy = Provisioning(plan.rules, plan.workers)
        self.drained: set[str] = set()  # workers drained by an operator
        self.last: tuple[float, str, str] | None = None  # last decision about a worker: when, what, why
        self.decisions = {"start": 0, "drain": 0}

    def handle(self, event: ScalingEvent, now: float) -> None:
        holdings = self._holdings
        match event:
            case Pressed(name, incarnation, blocks) if holdings.current(name, incarnation):
                extra = holdings.placement.scale_out(name, blocks)
                for hop in extra.hops if extra is not None else ():
                    if hop.missing:
                        hop.residency.want(hop.route.route.application)
                if extra is not None:
                    holdings.touched.update((hop.worker, None) for hop in extra.route.hops)
                    holdings.table.touch([extra])
                    holdings.catalog()
            case Idle(name, incarnation, applications) if holdings.current(name, incarnation):
                holdings.end_extras(lambda extra: extra.route.application in applications and extra.is_on(name))
            case Observed(measured, predicted):
                self.policy.observe(now, measured=measured, predicted=predicted)
            case DrainWorker(worker, drain):
                self._drain(worker, drain)
            case Vacated(worker) if self.policy.stage.get(worker) is WorkerStage.DRAINING:
                self._forget(worker)
                holdings.after.append(StopWorker(worker))
            case WorkerStopped(worker):
                self.policy.gone(worker, now)

    def lacking(self, why: str) -> None:
        """Note that KV memory is lacking and no parameters can be dropped for it."""
        self.policy.lacking(why)

    def undrainable(self, worker: str) -> str:
        """Return why a worker must not be drained: a sentence, or empty."""
        if self._holdings.group_of(worker) is not None:
            return "it serves as a part of a pipeline until a burst is over; wait for the restore"
        if worker not in self.drained and worker in self.draining:
            return "the autoscaler does that already, and stops it"
        if model := needed_by(worker, self._serving(self._holdings.table.paused_by("drain"))):
            return f"model {model} would have no route left; add a worker, or remove the model first"
        return ""

    def _drain(self, worker: str, drain: bool) -> None:
        if worker not in self._holdings.workers or drain == (worker in self.drained):
            return
        if drain:
            self.drained.add(worker)
            self._holdings.after.append(VacateWorker(worker, self._plan.grace, "an operator asked for it"))
        else:
            self.drained.discard(worker)
            self._holdings.after.append(ResumeWorker(worker))
        self._pause(worker, drain)

    def down(self, worker: str, now: float) -> None:
        """Note that a worker died."""
        if worker in self.policy.stage:
            self.policy.down(worker, now)

    def tick(self, now: float) -> None:
        """Decide whether a worker is started or drained. Costs work for what changed, since heartbeats lead here too."""
        for name in self._holdings.touched:
            if self.policy.stage.get(name) is WorkerStage.STARTING and self._holdings.workers[name].state == "ready":
                self.policy.up(name, now)
        if self._holdings.table.resumed:
            self._holdings.table.resumed = False
            for name in self.draining:
                self._pause(name, True)  # including routes that came into force or were resumed since
        if self._plan.rules.mode == "off":
            return
        match self.policy.decide(now, self._work):
            case StartOne(worker, why):
                self._decided(now, "start", worker, why)
                self._enlist(worker)
                self._holdings.after.append(StartWorker(worker, why))
            case DrainOne(worker, why):
                self._decided(now, "drain", worker, why)
                self._holdings.placement.closed.add(worker)
                self._pause(worker, True)
                self._holdings.after.append(VacateWorker(worker, self._plan.grace, why))

    @property
    def draining(self) -> list[str]:
        """Workers that take nothing new and have not been forgotten."""
        return [n for n in dict.fromkeys([*sorted(self.drained), *self.policy.draining]) if n in self._holdings.workers]

    def view(self, now: float, wall: float) -> dict[str, Any]:
        """Return the part of the cluster's view about scaling. ``wall``: seconds since the epoch at ``now``."""
        counts = {stage.value: self.policy.count(stage) for stage in WorkerStage if stage is not WorkerStage.OFF}
        rules, wanted = self._plan.rules, counts["starting"] + counts["active"]
        last = None
        if self.last is not None:
            at, decision, why = self.last
            last = {"at": round(wall - now + at, 3), "decision": decision, "why": why}
        bounds = {"least": rules.least, "most": len(self._plan.workers)}
        found = {"mode": rules.mode, "limit": rules.limit, **bounds, "decisions": self.decisions, "last": last}
        return found | {"workers": {"wanted": wanted, **counts}}

    def _decided(self, now: float, what: str, worker: str, why: str) -> None:
        self.last = now, f"{what} {worker}", why
        self.decisions[what] += 1

    def _work(self) -> Mapping[str, float]:
        """Return the requests at each worker that can be spared. Workers of a burst's pipeline are left out."""
        free = {n: one for n, one in self._holdings.workers.items() if self._holdings.group_of(n) is None}
        return spare({name: one.running + one.waiting for name, one in free.items()}, self._serving(()))

    def _serving(self, drained: Container[str]) -> dict[str, list[Sequence[str]]]:
        """Return, by application, the workers of each route that it relies on, except for ``drained`` routes."""
        return {
            name: relied_on(
                (workers_of(p.route), p.whole) for p in served.planned if not p.suspended and p.route.id not in drained
            )
            for name, served in self._holdings.served.items()
            if served.deployed
        }

    def _routes(self, worker: str) -> list[PlannedRoute]:
        return [p for served in self._holdings.served.values() for p in served.planned if p.is_on(worker)]

    def _pause(self, worker: str, paused: bool) -> None:
        self._holdings.table.pause(self._routes(worker), paused, "drain")

    def _enlist(self, name: str) -> None:
        """Add a worker: plan what fits there; it loads when the worker is up."""
        holdings = self._holdings
        holdings.workers[name] = WorkerRecord(name, extra=True)
        holdings.residency[name] = Residency(holdings.served, holdings.table.touched)
        holdings.placement.closed.discard(name)
        for application in holdings.placement.replicate(name):
            holdings.residency[name].want(application)
        holdings.catalog()
        holdings.touched[name] = None

    def _forget(self, name: str) -> None:
        holdings = self._holdings
        self._pause(name, False)
        holdings.alive -= holdings.workers[name].alive
        holdings.residency[name].clear()
        holdings.end_routes(self._routes(name))
        del holdings.workers[name], holdings.residency[name]
        self.drained.discard(name)
        holdings.touched.pop(name, None)
