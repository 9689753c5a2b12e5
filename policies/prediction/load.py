"""The load of a worker as dispatch policies compare it, from its sweep machine or a replica.

A block is a page of KV: ``page_size`` tokens on all layers that the worker has of a route.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory.worker_memory import WorkerMemory
from ..model.runs import LocalRoute
from ..sweep.columns import Status
from ..sweep.events import Submission
from ..sweep.offline_capacity import offline_bytes
from ..sweep.state import SweepState
from .candidate import Candidate, Forecast


def candidate_at(
    state: SweepState,
    route: str,
    submission: Submission,
    in_flight: Sequence[Submission] = (),
    forecast: Forecast | None = None,
) -> Candidate | None:
    """Return the home of a route as a candidate for a request; None if the route is not in force there.

    Offline sequences are no load, as they give way to all others. in_flight: requests that were sent there and have not
    reached its machine; they count as waiting.
    """
    parts = state.parts
    local = parts.routes.home(route)
    if local is None:
        return None
    rows, size = parts.rows, parts.config.page_size
    running, waiting = 0, [len(of.tokens) for of in in_flight]
    for s in rows.live():
        if rows.is_guest(s) or rows.is_draft_row(s) or rows.is_offline(s):
            continue
        if rows.status[s] == Status.RUNNING:
            running += 1
        elif rows.status[s] != Status.LEAVING or rows.requeue[s]:
            waiting.append(rows.length[s])
    total = used = 0
    if local.spans:
        total = parts.memory.pages_of(local.kv, "")
        block = parts.memory.page_bytes(local.kv)
        offline = sum(offline_bytes(parts).values()) // block
        used = min(max(used_blocks(parts.memory, block) - offline, 0), total)
    return Candidate(
        route=route,
        home=parts.config.worker,
        running=running,
        waiting=len(waiting),
        free_blocks=total - used,
        total_blocks=total,
        waiting_blocks=sum([-(-tokens // size) for tokens in waiting]),
        cached_blocks=_cached(state, local, submission),
        in_flight=len(in_flight),
        forecast=forecast,
    )


def used_blocks(memory: WorkerMemory, block_bytes: int) -> int:
    """Return what sequences of all routes hold, in blocks of ``block_bytes``. Pages that are only cached count as free."""
    pages = memory.pages
    slots = [(n - pages.idle.slots[arena]) * pages.allocator(arena).slot_bytes for arena, n in pages.slots_in_use.items()]
    return -(-sum(slots) // block_bytes)


def _cached(state: SweepState, local: LocalRoute, submission: Submission) -> int:
    """Return the leading pages of a prompt that a sequence would find there."""
    parts = state.parts
    if not parts.config.prefix_cache or not local.spans or submission.scored:
        return 0
    pages, found = parts.memory.pages, 0
    for token_hash in submission.page_hashes[: (len(submission.tokens) - 1) // parts.config.page_size]:
        if any(pages.find(token_hash, span) is None for span in local.spans[: local.kv_spans]):
            break
        found += 1
    return found
