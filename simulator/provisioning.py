"""Paid instances of a simulated cluster: the time each one is paid for, and the reasons for changes.

The controller's state machine decides (``control.py``). An instance is paid for from the decision to start it until it has
been drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..policies.cluster.provisioning import ProvisioningRules
from .description import ProvisioningSpec


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """A change of an instance.

    ``what`` is "starting", "active", "draining" or "stopped", or "died"; ``why`` is the reason of a decision.
    """

    at: float
    what: str
    place: int
    why: str = ""


class PaidInstances:
    """The account of paid instances (see the module).

    ``names``: of all instances; the first ``least`` are always there. ``standing_by``: how many of them are for a roll.
    """

    def __init__(self, spec: ProvisioningSpec, names: Sequence[str], standing_by: int = 0) -> None:
        self._spec, self.names = spec, list(names[: spec.most or None])
        self.least = spec.start or len(self.names) - standing_by
        self.changes: list[InstanceChange] = []
        self.peak = self.least  # most paid at a time
        self.starting: set[int] = set()  # places whose instance has been started and is not active yet
        self._paid_since = dict.fromkeys(range(self.least), 0.0)
        self._paid = 0.0  # instance-seconds of the ones that are gone

    @property
    def rules(self) -> ProvisioningRules:
        """The rules by which instances come and go."""
        spec = self._spec
        return ProvisioningRules(
            mode=spec.mode, limit=spec.limit, least=self.least, cool_down=spec.cool_down, window=spec.window,
            overlap=spec.overlap,
        )  # fmt: skip

    def note(self, what: str, place: int, now: float, why: str = "") -> InstanceChange:
        """Record a change, and return it."""
        (self.starting.add if what == "starting" else self.starting.discard)(place)
        if what == "starting":
            self._paid_since.setdefault(place, now)
            self.peak = max(self.peak, len(self._paid_since))
        elif what == "stopped":
            self._paid += now - self._paid_since.pop(place)
        self.changes.append(InstanceChange(now, what, place, why))
        return self.changes[-1]

    def mean(self, until: float) -> float:
        """Return the mean number of instances paid for, over the time until then."""
        paid = self._paid + sum(until - since for since in self._paid_since.values())
        return paid / until if until else float(len(self._paid_since))

    def figures(self, until: float, latencies: Iterable[float]) -> dict[str, object]:
        """Return the figures of ``docs/schemas/simulate.json``; ``until`` is the end of the simulation."""
        limit, changes = self._spec.limit, Counter(change.what for change in self.changes)
        return {
            "mode": self._spec.mode,
            "mean": round(self.mean(until), 6),
            "most": self.peak,
            "started": changes["starting"],
            "drained": changes["stopped"],
            "over_limit": sum(latency > limit for latency in latencies) if limit else 0,
        }
