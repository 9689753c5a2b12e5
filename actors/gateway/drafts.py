"""The view of a request's drafts: what was asked for, what was verified, and the reason if there are none."""

from __future__ import annotations

from collections.abc import Mapping

from ...policies.model.chain import Route
from ...policies.requests.dispatch import workers_of
from .port import DraftCounts, DraftView, Generation

NOT_ASKED = "the request's draft and prediction, and the setting drafts, ask for none"
OFFLINE = "lines of batches have none, since they only use what other requests leave"
APART = "drafts need a route on one worker"


def draft_view(generation: Generation, route: Route | None, counts: Mapping[str, DraftCounts]) -> DraftView:
    """Return the drafts of a request for its view. ``route``: of the current or last attempt."""
    asked = generation.drafts
    if asked is None:
        return DraftView(reason=NOT_ASKED)
    prediction = len(asked.prediction)
    reason = _reason(generation, route)
    return DraftView(
        prompt=asked.prompt, prediction_tokens=prediction, tokens=asked.tokens, sources=dict(counts), reason=reason
    )


def _reason(generation: Generation, route: Route | None) -> str:
    if generation.offline:
        return OFFLINE
    if route is not None and (count := len(workers_of(route))) > 1:
        return f"{APART}, and this one has {count}"
    return ""
