"""The settings of overload: when replicas drop parameters so that KV gets their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .autoscaling import AutoscaleSettings
from .errors import SettingsError
from .memory import MemorySettings
from .part import AllowedTexts, Bounds, SettingsPart
from .workers import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterDropSettings(SettingsPart):
    """The loads at which parameters are dropped and reloaded."""

    overload: Annotated[
        str,
        "on: when KV memory runs out, replicas drop parameters that others hold, and reload them after the burst; off",
        AllowedTexts("off", "on"),
    ] = "off"
    overload_throttled: Annotated[
        float,
        "share of a worker's KV memory in use that counts as full, 0.5 to 1",
        Bounds("more than 0.5, at most 1 (all KV memory)", 0.5, 1, above=True),
    ] = 0.95
    overload_quiet: Annotated[
        float,
        "share of all KV memory in use below which parameters are reloaded, 0 to 1",
        Bounds("more than 0, at most 1 (all KV memory)", 0, 1, above=True),
    ] = 0.5
    overload_horizon: Annotated[
        float,
        "seconds ahead that KV use is extrapolated, to act before memory is full; 0: act when it is",
        Bounds("seconds, or 0 for no extrapolation", 0),
    ] = 0.0
    overload_most: Annotated[
        int, "most workers in a pipeline formed by dropping parameters", Bounds("at least 2, or overload=off", 2)
    ] = 4

    @property
    def is_on(self) -> bool:
        """True if replicas may drop parameters."""
        return self.overload == "on"

    def check_together(self) -> None:
        if self.overload_quiet >= self.overload_throttled:  # restored parameters would be dropped again at once
            throttled = f"overload_throttled ({self.overload_throttled})"
            raise SettingsError(f"overload_quiet is {self.overload_quiet}; give less than {throttled}")

    def check_beside(self, worker: WorkerSettings, autoscaling: AutoscaleSettings, memory: MemorySettings) -> None:
        """Refuse what does not go with the workers and their memory."""
        if not self.is_on:
            return
        if max(worker.workers, autoscaling.autoscale_max_workers) < 2:
            raise SettingsError("overload is on with 1 worker, which holds nothing twice; give 2 or more, or overload=off")
        worker.check_single("overload", "makes pipelines of replicas")
        if not memory.prefix_cache:
            raise SettingsError(
                "overload is on, but prefix_cache is off, which it needs; set prefix_cache=on, or overload=off"
            )
