"""Messages between gateways and dispatchers. Values only; standard library and policies only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...prediction.candidate import Candidate
from ...sweep.events import Submission
from ..standing import Standing


@dataclass(frozen=True, slots=True)
class Ask:
    """gateway -> dispatcher: which route should this attempt take? ``routes``: id -> the workers of its hops, home first.

    standings: of each route if variants may serve the request; else none.
    """

    submission: Submission  # as it will be sent, except for the route
    routes: dict[str, list[str]]
    standings: dict[str, Standing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """dispatcher -> gateway: the choice. ``reason``: why the policy could not choose as it should; empty if it did.

    "no_forecast": no candidate has the forecast that the policy needs, so that its fallback chose; "poor_estimates": the
    same, because forecasts are not to be trusted (``dispatching.py``); "no_answer": no predictor answered, and no route is
    named. The gateway itself uses "dispatcher_late" and "dispatcher_dead" if no dispatcher answered, and "route_gone" if
    the route is not open any more.
    """

    request: str
    attempt: int
    route: str = ""
    policy: str = ""
    reason: str = ""
    candidates: list[Candidate] = field(default_factory=list)  # compared candidates whose predictors answered
    loads: list[list[float] | None] = field(default_factory=list)  # load of each by the policy; None: no forecast
    unanswered: dict[str, int] = field(default_factory=dict)  # "late" | "dead" | "absent" -> predictors without an answer
    rank: int = 0  # rank of the choice among ``ranked`` routes by load; 0: the request is not sampled
    ranked: int = 0
