"""The gateway's admission check for arriving requests.

Unknown models, draining, failed loads, requests too long for any worker, and overload are refused here.
"""

from __future__ import annotations

from ..account import is_only_account
from ..refusal import Refusal, RequestRefused
from .parts import BookParts
from .values import Generation


def refusal(parts: BookParts, generation: Generation, now: float) -> RequestRefused | None:
    """Return the reason to refuse a request, or None to admit it.

    Offline requests displace no others: they are sent by credit only, so the overload limit does not count them.
    """
    for model in generation.models:
        if (unknown := parts.catalogue.unknown(model)) is not None:
            return unknown
    if parts.draining:
        return parts.timeouts.closing()
    if generation.id in parts.active:
        return RequestRefused(Refusal.INVALID, f"request {generation.id!r} is running already")
    for model in generation.models:
        if (failed := parts.timeouts.failed(parts.table.models[model], parts.table, now)) is not None:
            return failed
        if (unfit := parts.catalogue.unfit(generation, model)) is not None:
            return unfit
    if generation.offline:
        return None
    tokens = parts.catalogue.virtual(generation.application) + len(generation.prompt) + generation.max_tokens
    alone = is_only_account(parts.tenants, len(parts.catalogue.configured), len(parts.table.models))
    return parts.overload.refusal(generation.account, tokens, len(parts.queue), now, alone=alone)
