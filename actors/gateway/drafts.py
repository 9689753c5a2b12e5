"""The view of a request's drafts: what was asked for, what was verified, and the reason if there are none."""

from __future__ import annotations

from collections.abc import Mapping

from .port import DraftCounts, DraftView, Generation

NOT_ASKED = "the request's draft and prediction, and the setting drafts, ask for none"
OFFLINE = "lines of batches have none, since they only use what other requests leave"


def draft_view(generation: Generation, counts: Mapping[str, DraftCounts]) -> DraftView:
    """Return the drafts of a request for its view."""
    asked = generation.drafts
    if asked is None:
        return DraftView(reason=NOT_ASKED)
    prediction = len(asked.prediction)
    reason = OFFLINE if generation.offline else ""
    return DraftView(
        prompt=asked.prompt, prediction_tokens=prediction, tokens=asked.tokens, sources=dict(counts), reason=reason
    )
