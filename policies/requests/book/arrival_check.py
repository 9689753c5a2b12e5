"""The gateway's admission check for arriving requests.

Unknown models, draining, failed loads, requests too long for any worker, and overload are refused here.
"""

from __future__ import annotations

from typing import Protocol

from ..account import is_only_account
from ..admission_limit import AdmissionLimit
from ..queue import WaitingQueue
from ..refusal import Refusal, RequestRefused
from ..request_timeout import RequestTimeout
from ..routing_table import RoutingTable
from .catalogue import Catalogue
from .record import RequestRecord
from .values import Generation


class AdmissionParts(Protocol):
    """The parts of ``RequestBook`` that admission needs."""

    catalogue: Catalogue
    timeouts: RequestTimeout
    table: RoutingTable
    overload: AdmissionLimit
    queue: WaitingQueue
    active: dict[str, RequestRecord]
    draining: bool
    tenants: int


def refusal(state: AdmissionParts, generation: Generation, now: float) -> RequestRefused | None:
    """Return the reason to refuse a request, or None to admit it.

    Offline requests displace no others: they are sent by credit only, so the overload limit does not count them.
    """
    for model in generation.models:
        if (unknown := state.catalogue.unknown(model)) is not None:
            return unknown
    if state.draining:
        return state.timeouts.closing()
    if generation.id in state.active:
        return RequestRefused(Refusal.INVALID, f"request {generation.id!r} is running already")
    for model in generation.models:
        if (failed := state.timeouts.failed(state.table.models[model], state.table, now)) is not None:
            return failed
        if (unfit := state.catalogue.unfit(generation, model)) is not None:
            return unfit
    if generation.offline:
        return None
    tokens = state.catalogue.virtual(generation.application) + len(generation.prompt) + generation.max_tokens
    alone = is_only_account(state.tenants, len(state.catalogue.configured), len(state.table.models))
    return state.overload.refusal(generation.account, tokens, len(state.queue), now, alone=alone)
