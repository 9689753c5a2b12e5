"""The decision of a dispatcher about one attempt: its candidates, its forecast, and the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from ...prediction.candidate import Candidate, Forecast
from .dispatch_messages import Chosen

SHOWN = 16  # candidates shown in a view; a thousand views are kept
_LOAD_FIELDS = ("running", "waiting", "free_blocks", "total_blocks", "waiting_blocks", "cached_blocks", "in_flight")
MOST_ERROR = 100.0  # cap of the relative error, for a forecast of "never"


@dataclass(slots=True)
class Decision:
    """One attempt's decision. ``route``: the route taken. ``reason``: why it differs from the policy's choice, or empty.

    Times are on the gateway's clock.
    """

    chosen: Chosen
    route: str
    reason: str
    since: float  # when the question was asked; forecasts count from here
    seconds: float  # seconds until the answer
    first_token: float | None = None  # time of the attempt's first token

    @property
    def forecast(self) -> Forecast | None:
        """The forecast for the route that was taken."""
        return next((candidate.forecast for candidate in self.chosen.candidates if candidate.route == self.route), None)

    def errors(self, ended: float) -> tuple[float, float]:
        """Return the relative errors of the forecasts of the first and last token.

        The error is |actual - predicted| / actual, with both counted from the question.
        """
        forecast = self.forecast
        assert forecast is not None, "there is no error without a forecast"
        assert self.first_token is not None, "a request that has ended whole has a first token"
        return (
            _error(forecast.first_token, self.first_token - self.since),
            _error(forecast.last_token, ended - self.since),
        )

    def view(self, arrival: float, ended: float | None) -> dict[str, Any]:
        """Return the decision as plain data for JSON.

        Times are seconds from the question, except ``at``: the time of the question, in seconds from the request's
        arrival. ``ended``: when the last token came; None if it has not come or never will.
        """
        chosen = self.chosen
        known = list(zip(chosen.candidates, chosen.loads, strict=True))
        known.sort(key=lambda pair: pair[0].route != self.route)  # the route taken goes first, so that it is never cut off
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
    """Return a candidate as plain data. Figures of the worker are None where the policy does not ask for them."""
    forecast, known = candidate.forecast, candidate.total_blocks > 0
    return {
        "route": candidate.route,
        "home": candidate.home,
        "load": None if load is None else [_finite(number) for number in load],
        **{name: getattr(candidate, name) if known else None for name in _LOAD_FIELDS},
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
    """Return a number for JSON, which has no infinity; None stands for "never"."""
    return number if isfinite(number) else None
