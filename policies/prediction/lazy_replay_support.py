"""Conditions of the workers that a lazy replay covers: one route, one account, all sequences at home there."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.runs import LocalRoute
from ..requests.urgency import service_class, shared_class
from ..sweep.columns import Place, Status
from ..sweep.events import Submission
from ..sweep.parts import Parts


class LazyReplayUnsupported(Exception):
    """A worker that does, or would come to do, something that a lazy replay does not cover."""


def single_route(parts: Parts, arrivals: Iterable[Submission]) -> LocalRoute:
    """Return the single route of all sequences. Raises LazyReplayUnsupported if there is more than one of anything."""
    rows, config = parts.rows, parts.config
    live = rows.live()
    submissions = [*arrivals, *[rows.submission[s] for s in live]]
    online = [*arrivals, *[rows.submission[s] for s in live if not rows.is_offline(s)]]
    accounts = {(shared_class(of.priority), of.tenant) for of in online}
    if parts.queue.offline:  # leaving ones are not in the queue
        raise LazyReplayUnsupported("offline sequences")
    local = parts.routes.home(submissions[0].route) if submissions else None
    if local is None or len(local.spans) > 1 or len({of.route for of in submissions}) > 1:
        raise LazyReplayUnsupported("several routes")
    classes = {service_class(of.priority) for of in arrivals} | {service_class(rows.priority[s]) for s in live}
    if len(classes) > 1:
        raise LazyReplayUnsupported("several service classes")
    if len(accounts) > 1 or parts.memory.capped or any(of.scored for of in submissions):
        raise LazyReplayUnsupported("several accounts")
    if any(rows.place[s] != Place.LOCAL or rows.status[s] in (Status.PARKED, Status.LEASING) for s in live):
        raise LazyReplayUnsupported("sequences that wait for something else")
    if local.next_worker is not None or config.sweep_tokens < config.max_rows:
        raise LazyReplayUnsupported("more rows than a sweep has tokens")
    return local


def pages_left(parts: Parts, local: LocalRoute) -> tuple[int, int]:
    """Return the pages of this route that are free, and the cached ones that the worker would evict for them."""
    if not local.spans:
        return 1 << 60, 0
    pages = parts.memory.pages
    arena = local.spans[0].arena
    width = local.spans[0].layers
    if any(used for other, used in pages.slots_in_use.items() if other != arena):
        raise LazyReplayUnsupported("pages of several layouts")
    free = pages.allocator(arena).room
    return free // width, (free + pages.idle.slots[arena]) // width - free // width
