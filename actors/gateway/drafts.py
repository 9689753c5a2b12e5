"""The view of a request's drafts: what was asked for, what was verified, and the reason if there are none."""

from __future__ import annotations

from collections.abc import Mapping

from ...policies.drafts.options import DraftOptions
from ...policies.model.chain import Route
from ...policies.requests.routing_table import RoutingTable
from .port import DraftCounts, DraftView, Generation

NOT_ASKED = "the request's draft and prediction, and the setting drafts, ask for none"
BELOW = "{} passes no exit that the request or the setting drafts asks for"
OFFLINE = "lines of batches have none, since they only use what other requests leave"
ACROSS = "a tier drafts on one worker only, and the request is on a route over {}"
ELSEWHERE = "{} is not served whole by {}, where the request runs"


def no_tier_here(asked: DraftOptions | None, route: Route, table: RoutingTable) -> str:
    """Return the reason why no tier can draft for a request on this route; "" if one can, or if none was asked for."""
    if asked is None or not asked.tiers:
        return ""
    if len(route.hops) > 1:
        return ACROSS.format(f"{len(route.hops)} workers")
    for tier in asked.tiers:
        routes = table.routes.get(table.models.get(tier, tier), [])
        if any([hop.worker for hop in one.hops] == [route.home] for one in routes):
            return ""
    return ELSEWHERE.format(" or ".join(asked.tiers), route.home)


def draft_view(generation: Generation, counts: Mapping[str, DraftCounts], no_tier: str) -> DraftView:
    """Return the drafts of a request for its view. ``no_tier``: why no tier drafts for it, if there is a reason."""
    asked = generation.drafts
    if asked is None:
        above = generation.auto is not None and generation.auto.drafts is not None
        return DraftView(reason=BELOW.format(generation.application) if above else NOT_ASKED)
    prediction = len(asked.prediction)
    reason = OFFLINE if generation.offline else no_tier
    return DraftView(
        prompt=asked.prompt, prediction_tokens=prediction, tokens=asked.tokens, sources=dict(counts), reason=reason,
        tiers=asked.tiers,
    )  # fmt: skip
