"""Copies of a request's KV pages, for its claim on another route or as it begins: which layers go where, and what is asked
of workers.

As a request begins, another route of its chain may have more of its KV (``kv_dispatch.py``). These pages are copied while
the prompt is computed from its front; nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...model.chain import Route
from ...model.lineage import page_hashes
from ...sweep.page_events import Export, HoldPages, PageTarget
from ..kv_dispatch import copied_from
from ..moving import KEPT, page_targets
from .messages import ExportAt, HoldAt, Move
from .parts import BookParts
from .record import RequestRecord
from .route_claims import RouteClaim, places
from .values import MoveBegun
from .variants import known_kv


def move_to(parts: BookParts, record: RequestRecord, route: Route) -> Move:
    """Return the move of a request to a route."""
    source = record.placement.route
    assert source is not None, "who runs has a route"
    pages = record.progress.full_pages(parts.page_size)
    targets = targets_of(parts, source, route)
    nbytes = pages * sum(page_bytes(parts, route, to) for wanted in targets.values() for to in wanted)
    begun = MoveBegun(record.id, source.home, route.home, route.id, pages, nbytes)
    return Move(record.id, record.placement.attempt, route, begun)


def targets_of(parts: BookParts, source: Route, target: Route) -> Mapping[str, list[PageTarget]]:
    """Return, for each live worker, the layers it sends to each target. Empty for an application no longer served."""
    table = parts.table
    own, other = table.chains.get(source.application), table.chains.get(target.application)
    if own is None or other is None:
        return {}
    found = page_targets(own.components, other.components, source, target)
    return {worker: [PageTarget(*layers) for layers in to] for worker, to in found.items() if worker in table.alive}


def page_bytes(parts: BookParts, route: Route, to: PageTarget) -> int:
    """Return the bytes of one page's layers that go to one worker."""
    layouts = [c.kv for c in parts.table.chains[route.application].components if c.kv is not None]
    return sum(layout.raw_bytes for layout in layouts[to.first : to.end])


def export(parts: BookParts, claim: RouteClaim) -> None:
    """Ask for copies of the full pages that were not requested yet."""
    size = parts.page_size
    record = parts.active[claim.move.request]
    progress = record.progress
    full = claim.move.begun.pages if claim.pauses else progress.full_pages(size)
    if full <= claim.sent:
        return
    hashes = page_hashes(progress.tokens[: full * size], size, record.generation.salt)
    for worker, to in targets_of(parts, claim.source, claim.move.route).items():
        number = claim.waiting[worker] = parts.claims.numbered()
        wanted = Export(
            gateway=parts.address, request=record.id, attempt=claim.move.attempt, number=number,
            route=claim.source.id, account=record.account, hashes=hashes, since=claim.sent, to=to,
        )  # fmt: skip
        parts.emit(ExportAt(worker, wanted))
    claim.sent, claim.rounds = full, claim.rounds + 1


@dataclass(frozen=True, slots=True)
class KnownPagesElsewhere:
    """The pages of a request that another route of its chain has: numbers ``since`` to ``end - 1``."""

    source: Route
    target: Route
    since: int
    end: int


def find_copies(parts: BookParts, record: RequestRecord, route: Route) -> KnownPagesElsewhere | None:
    """Return the pages that a route lacks and another one has, for a request that begins there; None: there are none."""
    if not parts.rules.knows_kv or record.offline:
        return None
    cached = known_kv(parts, record, route.application)
    source = copied_from(parts.rules.kv, route, parts.table.routes[route.application], cached)
    if source is None or source.home not in parts.table.alive:
        return None
    since, end = (cached[one.id] // parts.page_size for one in (route, source))
    return KnownPagesElsewhere(source, route, since, end)


def ask_for_copies(parts: BookParts, record: RequestRecord, found: KnownPagesElsewhere, now: float) -> None:
    """Ask workers for the pages that another route has of a request that has just been sent."""
    hashes, nbytes = record.hashes(parts.page_size)[: found.end], 0
    for worker, to in targets_of(parts, found.source, found.target).items():
        nbytes += (found.end - found.since) * sum(page_bytes(parts, found.target, one) for one in to)
        wanted = Export(
            gateway=parts.address, request=record.id, attempt=record.placement.attempt, number=parts.claims.numbered(),
            route=found.source.id, account=record.account, hashes=hashes, since=found.since, to=to,
        )  # fmt: skip
        parts.emit(ExportAt(worker, wanted))
    ends = {"source": places(found.source), "target": places(found.target)}
    record.history.note(now, "copying", **ends, pages=found.end - found.since, bytes=nbytes)


def hold(parts: BookParts, claim: RouteClaim, route: Route, workers: Iterable[str], *, expects: bool) -> None:
    """Ask workers of a route to keep a paused request's pages, or to expect them."""
    record = parts.active[claim.move.request]
    pages = claim.move.begun.pages
    hashes = page_hashes(record.progress.tokens[: pages * parts.page_size], parts.page_size, record.generation.salt)
    wanted = HoldPages(
        parts.address, record.id, claim.move.attempt, route.id, record.account, record.generation.priority,
        record.arrival, hashes, KEPT, expects,
    )  # fmt: skip
    parts.emit(HoldAt(record.id, record.placement.attempt, [(worker, wanted) for worker in workers]))
