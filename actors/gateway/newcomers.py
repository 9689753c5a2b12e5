"""Whether a gateway takes a request that comes, and why not."""

from __future__ import annotations

from typing import Protocol

from blockwright.actors.gateway.catalogue import Catalogue
from blockwright.actors.gateway.port import Generation
from blockwright.actors.gateway.record import RequestRecord
from blockwright.policies.requests.account import is_only_account
from blockwright.policies.requests.overload import Overload
from blockwright.policies.requests.queue import WaitingQueue
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.requests.request_timeout import RequestTimeout
from blockwright.policies.requests.routing_table import RoutingTable


class TakingParts(Protocol):
    """What is needed of ``GatewayState``."""

    catalogue: Catalogue
    timeouts: RequestTimeout
    table: RoutingTable
    overload: Overload
    queue: WaitingQueue
    active: dict[str, RequestRecord]
    draining: bool
    tenants: int


def refusal(state: TakingParts, generation: Generation, now: float) -> RequestRefused | None:
    """None where it is taken. Offline requests crowd nobody out: they are sent by credit, and not counted."""
    if (unknown := state.catalogue.unknown(generation.application)) is not None:
        return unknown
    if state.draining:
        return state.timeouts.closing()
    if generation.id in state.active:
        return RequestRefused(Refusal.INVALID, f"request {generation.id!r} is running already")
    if (failed := state.timeouts.failed(state.table.models[generation.application], state.table, now)) is not None:
        return failed
    unfit = state.catalogue.unfit(generation)
    if unfit is not None or generation.offline:
        return unfit
    tokens = state.catalogue.virtual(generation.application) + len(generation.prompt) + generation.max_tokens
    alone = is_only_account(state.tenants, len(state.catalogue.configured), len(state.table.models))
    return state.overload.refusal(generation.account, tokens, len(state.queue), now, alone=alone)
