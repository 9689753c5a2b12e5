"""The settings of autoscaling: when workers are started and drained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...policies.cluster.provisioning import MODES, ProvisioningRules
from ...policies.prediction.dispatching import POLICIES
from .dispatching import DispatchSettings
from .errors import SettingsError
from .part import COUNT, AllowedTexts, Bounds, SettingsPart
from .workers import MOST_WORKERS, WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSettings(SettingsPart):
    """The mode of autoscaling and its limits."""

    autoscale: Annotated[
        str,
        "start and drain workers by latency: off, preemptive (by forecasts, see dispatch) or relief (by measurements)",
        AllowedTexts(*MODES),
    ] = "off"
    autoscale_latency: Annotated[
        float, "seconds from arrival to end above which one more worker starts", Bounds("seconds, 0 or more", 0)
    ] = 0.0
    autoscale_max_workers: Annotated[
        int, "most workers; on one machine threads and memory are divided by this number (workers is the least)", COUNT
    ] = 0
    autoscale_cooldown: Annotated[
        float, "seconds between one new worker being ready and the next one starting", Bounds("seconds, 0 or more", 0)
    ] = 30.0
    autoscale_window: Annotated[
        float,
        "seconds for which latency * n / (n - 1), with n workers, must be below half of autoscale_latency before one stops",
        Bounds("seconds, 0 or more", 0),
    ] = 60.0

    def rules(self, least: int, always: int = 0, *, places: bool = True) -> ProvisioningRules:
        """Return the rules by which workers are started and drained.

        least: workers that run from the start. always: with the ones that a launcher starts in any case. places: workers are
        started from here.
        """
        return ProvisioningRules(
            mode=self.autoscale,
            limit=self.autoscale_latency,
            least=least,
            cool_down=self.autoscale_cooldown,
            window=self.autoscale_window,
            floor=always if always > least else 0,
            places=places,
            most=max(self.autoscale_max_workers, always),
        )

    def check_together(self) -> None:
        if self.autoscale != "off":
            return
        if maximum := self.autoscale_max_workers:
            raise SettingsError(f"autoscale_max_workers is {maximum}, but autoscale is off; choose preemptive or relief")

    def check_beside(self, worker: WorkerSettings, dispatching: DispatchSettings) -> None:
        """Refuse what does not go with the workers and with dispatch."""
        if self.autoscale == "off":
            return
        if self.autoscale == "preemptive" and not dispatching.forecasts:
            those = ", ".join(name for name, known in POLICIES.items() if known.fallback)
            at = f"dispatch={dispatching.dispatch}"
            raise SettingsError(f"autoscale is preemptive, but {at} forecasts nothing; choose {those}")
        if not worker.workers < (maximum := self.autoscale_max_workers) <= MOST_WORKERS:
            few, many = worker.workers + 1, MOST_WORKERS
            raise SettingsError(f"autoscale_max_workers is {maximum} with {worker.workers} workers; give {few} to {many}")
        if not self.autoscale_latency:
            raise SettingsError("autoscale_latency is missing; give the seconds a request may take")
        worker.check_single("autoscale", "adds single workers")
