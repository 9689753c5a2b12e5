"""Load figures of the routes through a worker, for its reports: running and waiting sequences, and their KV."""

from __future__ import annotations

from ..cluster.scaling import RouteQueue
from ..model.runs import LocalRoute
from .columns import Status
from .parts import Parts


def kv_by_application(parts: Parts) -> dict[str, tuple[int, int]]:
    """Return the bytes of KV that each application's sequences list here, and the bytes that at least two sequences list."""
    rows, found = parts.rows, dict[str, list[int]]()
    for s in rows.live():
        found.setdefault(rows.route[s].route.application, []).extend(rows.handles(s))
    return {application: parts.memory.pages.use(handles) for application, handles in found.items()}


def queues(parts: Parts) -> list[RouteQueue]:
    """Return the queue of each route with sequences. Offline ones are not counted, since they give way to any other."""
    rows, memory = parts.rows, parts.memory
    found: dict[str, tuple[LocalRoute, list[int]]] = {}
    for s in rows.live():
        if rows.status[s] != Status.LEAVING and not rows.is_offline(s):
            _, counts = found.setdefault(rows.route[s].route.id, (rows.route[s], [0, 0, 0]))
            counts[0 if rows.status[s] == Status.RUNNING else 1] += 1
            counts[2] += rows.known[s]
    listed = []
    for local, (running, waiting, tokens) in found.values():
        hop = local.route.hops[local.hop]
        limit = memory.pages_of(local.kv, "") * parts.config.page_size if local.spans else 1 << 62
        listed.append(RouteQueue(local.route.application, hop.first, hop.last, running, waiting, tokens, limit))
    return listed
