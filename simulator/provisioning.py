"""Provisioner of a simulated cluster: its active instances, the time each one is paid for, and the reasons for changes.

``policies/cluster/provisioning.py`` decides, as on the live cluster. An instance is paid for from the decision to start it
until it has been drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..policies.cluster.provisioning import DrainOne, Provisioning, ProvisioningRules, StartOne, WorkerStage
from .description import ProvisioningSpec


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """A change of an instance.

    ``what`` is "starting", "active", "draining" or "stopped"; ``why`` is the reason of a decision.
    """

    at: float
    what: str
    place: int
    why: str = ""


class Provisioner:
    """Provisioner of instances (see the module).

    ``active`` are the places of instances that requests go to. ``names`` are all instances' names.
    """

    def __init__(self, spec: ProvisioningSpec, names: Sequence[str]) -> None:
        self.spec, self._names = spec, list(names[: spec.most or None])
        rules = ProvisioningRules(
            mode=spec.mode, limit=spec.limit, least=spec.start or len(self._names), cool_down=spec.cool_down,
            window=spec.window, overlap=spec.overlap,
        )  # fmt: skip
        self._policy = Provisioning(rules, self._names)
        self.active = list(range(rules.least))
        for place in self.active:
            self._policy.up(names[place], 0.0)
        self.changes: list[InstanceChange] = []
        self.peak = rules.least  # most paid at a time
        self._paid_since = dict.fromkeys(self.active, 0.0)
        self._paid = 0.0  # instance-seconds of the ones that are gone
        self._requests = [0] * len(self._names)  # number at each place

    def tick(self, now: float, *, measured: float = 0.0, predicted: float = 0.0) -> list[InstanceChange]:
        """Return the changes that follow from an observation; see ``Provisioning.observe``."""
        if self.spec.mode == "off":
            return []
        self._policy.observe(now, measured=measured, predicted=predicted)
        decision = self._policy.decide(now, lambda: {self._names[i]: self._requests[i] for i in self.active})
        began = len(self.changes)
        match decision:
            case StartOne(worker, why):
                place = self._names.index(worker)
                self._paid_since.setdefault(place, now)
                self.peak = max(self.peak, len(self._paid_since))
                self.changes.append(InstanceChange(now, "starting", place, why))
                if not self.spec.cold_start:
                    self.ready(place, now)
            case DrainOne(worker, why):
                place = self._names.index(worker)
                self.active.remove(place)
                self.changes.append(InstanceChange(now, "draining", place, why))
                self._stop(place, now)
        return self.changes[began:]

    def ready(self, place: int, now: float) -> InstanceChange:
        """Activate an instance after its cold start."""
        self._policy.up(self._names[place], now)
        self.active.append(place)
        self.changes.append(InstanceChange(now, "active", place))
        return self.changes[-1]

    def dispatched(self, place: int) -> None:
        """Count a request that goes to a place."""
        self._requests[place] += 1

    def ended(self, place: int, now: float) -> InstanceChange | None:
        """Count the end of a request at a place."""
        self._requests[place] -= 1
        return self._stop(place, now)

    def _stop(self, place: int, now: float) -> InstanceChange | None:
        if self._requests[place] or self._policy.stage[self._names[place]] is not WorkerStage.DRAINING:
            return None
        self._policy.gone(self._names[place], now)
        self._paid += now - self._paid_since.pop(place)
        self.changes.append(InstanceChange(now, "stopped", place))
        return self.changes[-1]

    def mean(self, until: float) -> float:
        """Return the mean number of instances paid for, over the time until then."""
        paid = self._paid + sum(until - since for since in self._paid_since.values())
        return paid / until if until else float(len(self._paid_since))

    def figures(self, until: float, latencies: Iterable[float]) -> dict[str, object]:
        """Return the figures of ``docs/schemas/simulate.json``; ``until`` is the end of the simulation."""
        limit, changes = self.spec.limit, Counter(change.what for change in self.changes)
        return {
            "mode": self.spec.mode,
            "mean": round(self.mean(until), 6),
            "most": self.peak,
            "started": changes["starting"],
            "drained": changes["stopped"],
            "over_limit": sum(latency > limit for latency in latencies) if limit else 0,
        }
