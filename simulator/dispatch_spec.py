"""Description of dispatch in a simulated cluster: how the gateway chooses an instance, and the role of KV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..policies.prediction.lengths import MORE
from ..policies.requests import kv_dispatch
from ..policies.requests.absent import LRU
from .record import Most


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSpec:
    """The choice of an instance for each request."""

    policy: str = "least-work"
    choices: int = 0  # number of instances, drawn at random, that are compared; 0: all
    dispatchers: Annotated[int, Most(256)] = 1  # each request comes to one of them, which has its own numbers and counts
    staleness: float = 0.0  # seconds for which a snapshot of an instance is reused; 0: a new one for every request
    # which dispatchers count requests that a snapshot does not show: all | "own": the sender | "none"; "alone": there are
    # no snapshots, and each knows the requests that it has sent and that have not ended, as live gateways do
    in_flight: str = "shared"
    correction: int = MORE  # tokens still expected of an answer that has outrun its estimate, without ``spread``
    spread: bool = True  # instances learn how wrong estimates are, and correct the expected rest of an answer by it
    kv_dispatch: str = kv_dispatch.OFF  # least-work: the role of KV: off (it is not known) | owner | recompute | least-busy
    proactive_copies: bool = False  # with owner or least-busy: KV of conversations that are away is copied ahead
    cold_kv: str = LRU  # the same: what idles in a full cache: lru | "least-waste"
    forecast_error: float = 0.0  # standard deviation of the factor by which forecast times are wrong
    free_switches: bool = False  # their KV is there at once: a bound on what switches can gain
    switches: int = 2  # most switches of a running request to an equivalent model's chain; 0: none

    @property
    def needs_copies(self) -> str:
        """The first field that needs copies of KV while nothing is copied; empty: none."""
        wanted = {"proactive_copies": self.proactive_copies, "cold_kv": self.cold_kv != LRU}
        copies = self.kv_dispatch in (kv_dispatch.OWNER, kv_dispatch.LEAST_BUSY)
        return next((name for name, one in wanted.items() if one and not copies), "")
