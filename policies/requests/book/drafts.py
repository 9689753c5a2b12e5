"""The view of a request's drafts: what was asked for, what was verified, and the reason if there are none."""

from __future__ import annotations

from collections.abc import Mapping

from ...drafts.options import DraftOptions
from ...model.chain import Route
from ..routing_table import RoutingTable
from .values import DraftCounts, DraftView, Generation

NOT_ASKED = "the request's draft and prediction, and the setting drafts, ask for none"
BELOW = "{} passes no exit that the request or the setting drafts asks for"
OFFLINE = "lines of batches have none, since they only use what other requests leave"
ACROSS = "a tier drafts on one worker only, and the request is on a route over {}"
MODEL_ACROSS = "a model drafts on one worker only, and the request is on a route over {}"
ELSEWHERE = "{} is not served whole by {}, where the request runs"
GONE = "{} is not served"


def no_drafter_here(asked: DraftOptions | None, route: Route, table: RoutingTable) -> str:
    """Return the reason why no tier and no other model can draft for a request on this route.

    It is empty if one can, or if none was asked for.
    """
    if asked is None or not (asked.reason or asked.tiers or asked.drafter):
        return ""
    if asked.reason:
        return asked.reason.removeprefix("but ") if asked.reason.startswith("but ") else GONE.format(asked.model)
    drafters = asked.tiers or [asked.drafter]
    served = {**table.drafting, **table.models}
    if not asked.tiers and asked.drafter not in served:
        return GONE.format(asked.drafter)
    if len(route.hops) > 1:
        return (ACROSS if asked.tiers else MODEL_ACROSS).format(f"{len(route.hops)} workers")
    for drafter in drafters:
        routes = table.routes.get(served.get(drafter, drafter), [])
        if any([hop.worker for hop in one.hops] == [route.home] for one in routes):
            return ""
    return ELSEWHERE.format(" or ".join(drafters), route.home)


def draft_view(generation: Generation, counts: Mapping[str, DraftCounts], no_drafter: str) -> DraftView:
    """Return the drafts of a request for its view. ``no_drafter``: as ``no_drafter_here`` returned it."""
    asked = generation.drafts
    if asked is None:
        above = generation.auto is not None and generation.auto.drafts is not None
        return DraftView(reason=BELOW.format(generation.application) if above else NOT_ASKED)
    prediction = len(asked.prediction)
    reason = OFFLINE if generation.offline else no_drafter
    return DraftView(
        prompt=asked.prompt, prediction_tokens=prediction, tokens=asked.tokens, sources=dict(counts), reason=reason,
        tiers=asked.tiers, model=asked.model,
    )  # fmt: skip
