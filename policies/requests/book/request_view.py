"""A request as its client sees it, made from the book's record of it."""

from __future__ import annotations

from typing import Any

from ...model.tier_choice import auto_id
from ..account import offline_account
from ..request_ownership import choice_of
from ..urgency import CLASSES, service_class
from .drafts import draft_view
from .record import RequestRecord
from .values import RequestView, ServiceView


def view_of(record: RequestRecord) -> RequestView:
    """Return the view of a request, running or ended."""
    progress, placement = record.progress, record.placement
    history = record.history
    state, generation = record.state, record.generation
    # a waiting request is nowhere, whatever its last route
    route = placement.route if state not in ("waiting", "held") else None
    hops = route.hops if route else ()
    arrival = record.arrival
    return RequestView(
        id=record.id,
        state="running" if state == "held" else state,
        attempt=placement.attempt,
        home=route.home if route else None,
        route=[{"worker": hop.worker, "first": hop.first, "last": hop.last} for hop in hops],
        prompt_tokens=len(progress.prompt),
        computed_tokens=progress.seen(progress.computed),
        emitted_tokens=0 if generation.pooled else progress.emitted,  # a vector counts as one within the server
        events=[{"at": at - arrival, "event": event, **detail} for at, event, detail in history.events],
        dispatch=None if placement.decision is None else placement.decision.view(arrival, history.ended),
        key=generation.key,
        arrival=arrival,
        tenant=generation.tenant,
        model=record.model if record.choice is None else auto_id(record.choice.auto.top),
        drafts=draft_view(generation, history.drafts, placement.no_drafter),
        tier=None if record.choice is None else record.choice.view(),
        service=_service(record),
        parked_steps=history.parked,
        parked_seconds=history.parked_seconds,
        variant=record.stand_ins,
        switches=[one.view(arrival, history.ended) for one in history.switches],
        chains=[_chain(record)],
        entered={str(layers): tokens for layers, tokens in sorted(history.entered.items())},
    )


def _chain(record: RequestRecord) -> dict[str, Any]:
    """Return the chain that a sequence asked for, the one that serves it, and the reason where they differ or differed."""
    reasons = [detail["why"] for _, event, detail in record.history.events if event == "chain"]
    used = record.variant or record.model
    why = reasons[-1] if reasons else ""
    return {"choice": choice_of(record.id), "listed": record.model, "used": used, "why": why, "similarity": None}


def _service(record: RequestRecord) -> ServiceView:
    """Return the service class and the account."""
    generation = record.generation
    return ServiceView(
        asked=CLASSES[service_class(record.urgency)],
        risen=record.placement.risen,
        account=offline_account(generation.side) if record.offline else record.account,
        tier=record.model if generation.family else "",
        yielded=record.history.yielded,
    )
