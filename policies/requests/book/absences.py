"""Conversations that are away from a gateway (``policies/requests/absent.py``): who leaves and comes back, and what workers
are asked to do with their KV.

Copies travel in the class of KV, so they wait for activations, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...model.chain import Route
from ...sweep.page_events import Export, Exported
from ..absent import AbsentConversation, AbsentOrder, AbsentStep, HomeLoad
from ..dispatch import UNKNOWN, workers_of
from .copying import targets_of
from .messages import ExportAt, RetireAt
from .parts import BookParts
from .record import RequestRecord
from .variants import copy_seconds


def leave(parts: BookParts, record: RequestRecord, now: float) -> None:
    """Note that a conversation is away: its request has ended, and its worker has the KV of all but its last token."""
    route, size = record.placement.route, parts.page_size
    if not parts.absent.wanted or record.offline or record.generation.pooled or route is None or len(workers_of(route)) > 1:
        return
    tokens = len(record.progress.tokens) - 1
    if hashes := tuple(record.hashes(size)[: tokens // size]):
        parts.absent.leave(AbsentConversation(record.id, record.account, route, hashes, tokens, now))


def come(parts: BookParts, record: RequestRecord) -> None:
    """Note that a request has arrived, which may continue a conversation that was away."""
    if parts.absent.wanted and not record.offline:
        parts.absent.come(record.application, record.hashes(parts.page_size))


def time_passes(parts: BookParts, now: float) -> None:
    """Decide about the KV of conversations that are away, by application: copies have a speed of their own for each."""
    if not len(parts.absent):
        return
    homes = _homes(parts)
    copy = {name: copy_seconds(parts, name) for name in {name for home in homes.values() for name in home.routes}}
    for order in parts.absent.decide(homes, copy, now):
        if order.target is None:
            _retire(parts, order.conversation)
        else:
            _copy(parts, order, order.target)


def accept(parts: BookParts, news: Exported, worker: str) -> None:
    """Take a worker's answer to an export, if it was asked for here."""
    order = parts.absent.current(worker)
    if order is None or order.conversation.request != news.request:
        return
    whole = not news.reason and not news.refused
    done = parts.absent.arrived(worker, whole=whole)
    if done is None or done.target is None or (chain := parts.table.chains.get(done.target.application)) is None:
        return
    room = parts.table.capacity.get(done.target.id, UNKNOWN) // parts.page_size
    parts.pages.note(done.target.home, parts.pages.lineage(chain), done.conversation.hashes, room)
    if done.step is AbsentStep.MOVE:
        _retire(parts, done.conversation)


def _homes(parts: BookParts) -> Mapping[str, HomeLoad]:
    """Return the loads of the workers that have whole routes, by name."""
    table, routes = parts.table, dict[str, dict[str, Route]]()
    for name, own in table.routes.items():
        for route in own:
            if len(workers_of(route)) == 1:
                routes.setdefault(route.home, {})[name] = route
    return {worker: _load(parts, worker, routes[worker]) for worker in sorted(routes)}


def _load(parts: BookParts, worker: str, routes: Mapping[str, Route]) -> HomeLoad:
    table, paces = parts.table, parts.table.paces.measured
    token = max(paces.seconds(table.sizes.get(name, (0, 0))[0]) for name in routes) * paces.of(worker)
    held = sum(len(parts.active[request].progress.tokens) for request in table.on.get(worker, ()))
    room = max(table.capacity.get(route.id, UNKNOWN) for route in routes.values())
    return HomeLoad(worker, routes, (token or 1.0) * table.work.get(worker, 0), token, held, room)


def _copy(parts: BookParts, order: AbsentOrder, target: Route) -> None:
    one = order.conversation
    for worker, to in targets_of(parts, one.route, target).items():
        wanted = Export(
            gateway=parts.address, request=one.request, attempt=0, number=parts.claims.numbered(), route=one.route.id,
            account=one.account, hashes=[*one.hashes], since=0, to=[*to],
        )  # fmt: skip
        parts.emit(ExportAt(worker, wanted))


def _retire(parts: BookParts, one: AbsentConversation) -> None:
    if one.route.home in parts.table.alive:
        parts.emit(RetireAt(one.route.home, one.route.id, one.hashes))
