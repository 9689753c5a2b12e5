"""Readings of one worker's memory for the demand monitor: parameters, KV, and waiting requests."""

from __future__ import annotations

from dataclasses import dataclass

from ..prediction.load import used_blocks
from ..sweep.columns import Status
from ..sweep.offline_capacity import offline_bytes
from ..sweep.state import SweepState


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """The memory of a worker now: bytes, and pages of ``page_size`` tokens on the layers that it computes.

    With several routes, the layers of the first one in force count.
    """

    budget: int  # bytes
    parameters: int  # bytes
    kv: int  # bytes of pages that sequences list
    cached: int  # bytes of pages that are only cached and can be evicted
    pages: int  # pages that fit beside the parameters; 0: no route is in force
    used: int  # pages of sequences
    head: int  # pages that the first in the queue needs
    waiting: int  # pages that the whole queue needs


def pool_reading(state: SweepState) -> PoolReading:
    """Return the reading of a worker. It costs work for each sequence, none for its pages.

    Pages held and wanted by offline sequences do not count.
    """
    memory = state.parts.memory
    rows = state.parts.rows
    size = state.config.page_size
    local = next((one for one in state.parts.routes.all_in_force() if one.spans), None)
    waiting = {
        s: -(-rows.length[s] // size)
        for s in (rows.live() if state.awaiting else ())
        if not rows.is_guest(s)
        and not rows.is_offline(s)
        and rows.status[s] != Status.RUNNING
        and (rows.status[s] != Status.LEAVING or rows.requeue[s])
    }
    offline, idle = sum(offline_bytes(state.parts).values()), 0
    held = used_blocks(memory, 1) - offline
    for arena, count in memory.pages.idle.slots.items():
        idle += count * memory.pages.allocator(arena).slot_bytes
    pages = used = 0
    if local is not None:
        pages = memory.pages_of(local.kv, "")
        used = min(-(-held // memory.page_bytes(local.kv)), pages)
    return PoolReading(
        budget=memory.total_bytes,
        parameters=memory.parameter_bytes,
        kv=held,
        cached=idle,
        pages=pages,
        used=used,
        head=waiting.get(state.parts.queue.first(), 0) if state.waiting else 0,
        waiting=sum(waiting.values()),
    )
