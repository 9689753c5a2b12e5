"""The settings of faults and shutdown: how long the parts of a cluster wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import SettingsError
from .part import SECONDS, Bounds, SettingsPart


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings(SettingsPart):
    """The times after which something counts as dead, hung or late."""

    heartbeat: Annotated[
        float, "seconds between a worker's heartbeats, at least 0.01", Bounds("at least 0.01 seconds", 0.01)
    ] = 0.5
    silence: Annotated[float, "seconds without a heartbeat after which a worker is declared down", SECONDS] = 2.0
    stall_timeout: Annotated[
        float, "seconds without progress in a step (beyond pace) that mean a hung worker; it is replaced", SECONDS
    ] = 10.0
    worker_wait: Annotated[float, "seconds requests wait while no worker can serve them; then they fail", SECONDS] = 30.0
    drain_timeout: Annotated[
        float, "seconds for requests to finish after SIGTERM, or when their model is removed", SECONDS
    ] = 30.0
    resume_window: Annotated[
        float,
        "seconds for which answers are kept for a retry, if they were cut off or have an Idempotency-Key; 0: they are not",
        Bounds("seconds, or 0 to remember nothing", 0),
    ] = 30.0
    orphan_grace: Annotated[
        float,
        "seconds for which workers and gateways serve on without a head until the next adopts them; 0: they end with it",
        Bounds("seconds, or 0 to end all with the head", 0),
    ] = 300.0
    check: Annotated[bool, "verify the memory accounts after every seventh step, not only when idle"] = False

    def check_together(self) -> None:
        if self.silence < 2 * self.heartbeat:
            raise SettingsError(f"silence is {self.silence} s; give at least twice heartbeat ({self.heartbeat} s)")
