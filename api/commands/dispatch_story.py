"""The reasons for a request's route in words: the candidates, the forecast for each, and the outcome.

Pure; made from ``dispatch`` in the body of ``/v1/requests/{id}``. Seconds count from the query to a dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...policies.cluster.application_life import model_of

_HEAD = ("route", "load", "running", "waiting", "free", "cached", "in flight", "first token", "last token", "others lose")
_COUNTS = ("running", "waiting", "free_blocks", "cached_blocks", "in_flight")  # None: the worker was not queried
REASONS = {
    "no_forecast": "no candidate had a forecast, so that the policy's fallback chose",
    "poor_estimates": "answer lengths were estimated too badly for forecasts, so that the policy's fallback chose",
    "no_answer": "no predictor answered in time: the gateway chose by outstanding work",
    "dispatcher_late": "the dispatcher did not answer in time: the gateway chose by outstanding work",
    "dispatcher_dead": "the dispatcher was down: the gateway chose by outstanding work",
    "route_gone": "the route that was chosen was not open any more: the gateway chose by outstanding work",
}


def decision(dispatch: Mapping[str, Any]) -> list[str]:
    """Return the lines that ``blockwright explain`` prints of a dispatch."""
    by = f"by {dispatch['policy']} " if dispatch["policy"] else ""
    among = f", rank {dispatch['rank']} of {dispatch['ranked']}" if dispatch["rank"] else ""
    lines = [f"route {_route(dispatch['route'])}, chosen {by}in {1000 * dispatch['seconds']:.1f} ms{among}"]
    if reason := dispatch["fell_back"]:
        lines.append(f"fell back: {REASONS.get(reason, reason)}")
    if silent := ", ".join(f"{count} {why}" for why, count in dispatch["unanswered"].items()):
        lines.append(f"predictors without an answer: {silent}")
    if dispatch["candidates"]:
        rows = [_HEAD, *[_row(candidate) for candidate in dispatch["candidates"]]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            mark = "*" if row[0] == _route(dispatch["route"]) else " "
            cells = [row[0].ljust(widths[0]), *[cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]]
            lines.append(f"{mark} {'  '.join(cells)}".rstrip())
    predicted = next((c["forecast"] for c in dispatch["candidates"] if c["route"] == dispatch["route"]), None)
    lines += [_outcome(name, predicted, dispatch) for name in ("first_token", "last_token") if predicted is not None]
    return lines


def _route(id: str) -> str:
    """Return the model and the workers of a route, without the version of the model in its id."""
    name, at, workers = id.rpartition("@")
    return f"{model_of(name)}{at}{workers}"


def _row(candidate: Mapping[str, Any]) -> Sequence[str]:
    forecast, load = candidate["forecast"], candidate["load"]
    return (
        _route(candidate["route"]),
        "-" if load is None else " ".join(_number(part) for part in load) or "-",
        *["-" if candidate[name] is None else str(candidate[name]) for name in _COUNTS],
        *["-" if forecast is None else _seconds(forecast[name]) for name in ("first_token", "last_token", "delayed")],
    )


def _outcome(name: str, predicted: Mapping[str, Any], dispatch: Mapping[str, Any]) -> str:
    actual, errors = dispatch["actual"][name], dispatch["error"]
    came = "it has not come" if actual is None else f"it came after {_seconds(actual)}"
    wrong = f" ({errors[name]:.0%} off)" if errors else ""
    return f"{name.replace('_', ' ')}: predicted after {_seconds(predicted[name])}, {came}{wrong}"


def _number(part: float | None) -> str:
    return "never" if part is None else f"{part:.4g}"


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3f} s"
