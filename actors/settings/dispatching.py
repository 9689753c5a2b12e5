"""The settings of dispatch: how a worker is chosen for a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...policies.prediction.dispatching import POLICIES
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
