"""The settings of dispatch: how a worker is chosen for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...policies.prediction.dispatching import POLICIES
from ...policies.requests import kv_dispatch
from ...policies.requests.absent import COLD, LRU
from .errors import SettingsError
from .memory import MemorySettings
from .part import AT_LEAST_ONE, COUNT, SECONDS, AllowedTexts, AtMost, Bounds, SettingsPart

OUTSTANDING = "outstanding"  # the value of ``dispatch`` with which gateways dispatch by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings(SettingsPart):
    """The dispatchers and their policy."""

    dispatch: Annotated[
        str,
        "choice of a worker for a request: outstanding (least work), or a policy of docs/scheduling.md",
        AllowedTexts(OUTSTANDING, *POLICIES),
    ] = OUTSTANDING
    kv_dispatch: Annotated[
        str,
        "KV in the choice of a worker: owner (who has the prompt's goes first, others get copies), least-busy (copies "
        "only) or recompute (neither); off: it counts where variants may serve, and nothing is copied",
        AllowedTexts(*kv_dispatch.MODES),
    ] = kv_dispatch.OFF
    proactive_copies: Annotated[
        bool,
        "with kv_dispatch=owner or least-busy: copy the KV of a conversation that is away to a worker with less to do",
    ] = False
    cold_kv: Annotated[
        str,
        "the same, for KV that idles in a full cache: lru (the least recently used goes first), or least-waste (it is kept, "
        "dropped or moved, by the least byte-seconds)",
        AllowedTexts(*COLD),
    ] = LRU
    dispatch_candidates: Annotated[int, "routes to compare for each request, drawn at random; 0: all", COUNT] = 0
    dispatch_timeout: Annotated[float, "seconds a worker's predictor may take to answer a dispatcher", SECONDS] = 0.05
    dispatch_sample: Annotated[
        float,
        "share of requests for which all routes are asked, to rank the choice, 0 to 1",
        Bounds("a share of requests, 0 to 1", 0, 1),
    ] = 0.01
    dispatchers: Annotated[int, "dispatchers; gateways ask them in turn", AT_LEAST_ONE, AtMost(256)] = 1
    slo_ttft: Annotated[float, "target for the first token, in seconds, of the policies predicted-slo and ours", SECONDS] = (
        3.0
    )
    slo_latency: Annotated[float, "target for the last token, in seconds, of the policy predicted-slo", SECONDS] = 30.0

    def check_kv(self, memory: MemorySettings) -> None:
        """Refuse a role of KV without any that is kept, and copies where nothing is copied."""
        wanted = {"proactive_copies": "on" * self.proactive_copies, "cold_kv": self.cold_kv.removeprefix(LRU)}
        copies = self.kv_dispatch in (kv_dispatch.OWNER, kv_dispatch.LEAST_BUSY)
        for name, value in [(name, one) for name, one in wanted.items() if one and not copies]:
            raise SettingsError(
                f"{name} is {value}, but kv_dispatch is {self.kv_dispatch}, so nothing is copied; set kv_dispatch=owner"
            )
        if self.kv_dispatch != kv_dispatch.OFF and not memory.prefix_cache:
            raise SettingsError(
                f"kv_dispatch is {self.kv_dispatch}, but prefix_cache is off, so no KV is kept; set prefix_cache=on, or "
                "kv_dispatch=off"
            )

    @property
    def is_asked(self) -> bool:
        """True if gateways ask dispatchers."""
        return self.dispatch != OUTSTANDING

    @property
    def predicts(self) -> bool:
        """True if the policy looks at replicas of workers, so that there are predictors."""
        return self.is_asked and POLICIES[self.dispatch].looks

    @property
    def forecasts(self) -> bool:
        """True if the policy forecasts when requests end."""
        return self.is_asked and bool(POLICIES[self.dispatch].fallback)
