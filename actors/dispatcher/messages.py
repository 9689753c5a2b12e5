"""What a gateway asks a dispatcher and what that answers. Values only; standard library and policies only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policies.prediction.candidate import Candidate
from ...policies.sweep.events import Submission


@dataclass(frozen=True, slots=True)
class Ask:
    """gateway -> dispatcher: which route should this attempt take? ``routes``: id -> the workers of its hops, home first."""

    submission: Submission  # as it will be sent, but for the route
    routes: dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """dispatcher -> gateway. ``reason``: why the policy could not choose as it should; empty where it did.

    "no_forecast": no candidate has the forecast that the policy needs, so that its fallback chose; "poor_estimates": the
    same, because forecasts are not to be trusted (``dispatching.py``); "no_answer": no predictor answered, and no route is
    named. The gateway itself says "dispatcher_late" and "dispatcher_dead" where nobody answered it, and "route_gone" where
    the route is not open any more.
    """

    request: str
    attempt: int
    route: str = ""
    policy: str = ""
    reason: str = ""
    candidates: list[Candidate] = field(default_factory=list)  # that were compared and whose predictors answered
    loads: list[list[float] | None] = field(default_factory=list)  # of each by the policy; None: its forecast is missing
    unanswered: dict[str, int] = field(default_factory=dict)  # "late" | "dead" | "absent" -> predictors that said nothing
    rank: int = 0  # of the choice among ``ranked`` routes, all there are, by load; 0: this request is not of the sample
    ranked: int = 0
