"""What a dispatcher decided about an attempt of a request: the candidates, what was predicted, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from ...policies.prediction.candidate import Candidate, Forecast
from ..dispatcher.messages import Chosen

SHOWN = 16  # candidates of a request that its view names; a thousand views are kept
_TOLD = ("running", "waiting", "free_blocks", "total_blocks", "waiting_blocks", "cached_blocks", "in_flight")
MOST_ERROR = 100.0  # relative; of a forecast that said never


@dataclass(slots=True)
class Decision:
    """``route``: the one taken; ``reason``: why that is not what the policy says, empty where it is; times are on the
    gateway's clock."""

    chosen: Chosen
    route: str
    reason: str
    since: float  # when it was asked for; forecasts count from here
    seconds: float  # until the answer
    first_token: float | None = None  # of the attempt

    @property
    def forecast(self) -> Forecast | None:
        """For the route that was taken."""
        return next((candidate.forecast for candidate in self.chosen.candidates if candidate.route == self.route), None)

    def errors(self, ended: float) -> tuple[float, float]:
        """Of the forecasts of first and last token: |actual - predicted| / actual, both counted from the question."""
        forecast = self.forecast
        assert forecast is not None, "there is no error without a forecast"
        assert self.first_token is not None, "a request that has ended whole has a first token"
        return (
            _error(forecast.first_token, self.first_token - self.since),
            _error(forecast.last_token, ended - self.since),
        )

    def view(self, arrival: float, ended: float | None) -> dict[str, Any]:
        """For JSON. Seconds from the question, but ``at``: of the question, from the request's arrival. ``ended``: when the
        last token came, None where it has not, or never will."""
        chosen = self.chosen
        known = list(zip(chosen.candidates, chosen.loads, strict=True))
        known.sort(key=lambda pair: pair[0].route != self.route)  # the one taken first, whatever is cut off
        found: dict[str, Any] = {
            "at": self.since - arrival,
            "seconds": self.seconds,
            "policy": chosen.policy,
            "route": self.route,
            "fell_back": self.reason,
            "unanswered": dict(chosen.unanswered),
            "rank": chosen.rank,
            "ranked": chosen.ranked,
            "candidates": [_candidate(candidate, load) for candidate, load in known[:SHOWN]],
            "actual": {
                "first_token": None if self.first_token is None else self.first_token - self.since,
                "last_token": None if ended is None else ended - self.since,
            },
            "error": None,
        }
        if ended is not None and self.first_token is not None and self.forecast is not None:
            found["error"] = dict(zip(("first_token", "last_token"), self.errors(ended), strict=True))
        return found


def _error(predicted: float, actual: float) -> float:
    return min(abs(actual - predicted) / max(actual, 1e-9), MOST_ERROR)


def _candidate(candidate: Candidate, load: list[float] | None) -> dict[str, Any]:
    """What was known of it: nothing of the worker (None) where the policy does not ask."""
    forecast, told = candidate.forecast, candidate.total_blocks > 0
    return {
        "route": candidate.route,
        "home": candidate.home,
        "load": None if load is None else [_finite(number) for number in load],
        **{name: getattr(candidate, name) if told else None for name in _TOLD},
        "sent_last_minute": candidate.sent_last_minute,
        "forecast": forecast
        and {
            "first_token": _finite(forecast.first_token),
            "last_token": _finite(forecast.last_token),
            "delayed": _finite(forecast.delayed),
            "preemptions": forecast.preemptions,
        },
    }


def _finite(number: float) -> float | None:
    """JSON has no infinity; None is never."""
    return number if isfinite(number) else None
