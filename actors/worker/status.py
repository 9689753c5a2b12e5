"""A worker as others see it: the answers to ``status`` and ``memory``."""

from __future__ import annotations

import os

from blockwright.actors.worker.messages import MemoryReading, WorkerConfig, WorkerStatus
from blockwright.policies.prediction.load import used_blocks
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.state import SweepState


def status_of(
    config: WorkerConfig,
    state: SweepState,
    incarnation: int,
    numerics: str,
    lateness: float,
    figures: dict[str, float],
    slow: str,
) -> WorkerStatus:
    """lateness: see ``Device``; figures: of its sweeps; slow: why it is."""
    memory = state.parts.memory
    counters = {**state.counters, **figures}
    counters |= {"cached_pages": memory.pages.cached, "pages_shared_now": memory.pages.shared_now()}
    return WorkerStatus(
        name=config.name,
        incarnation=incarnation,
        pid=os.getpid(),
        device=config.device,
        numerics=numerics,
        budget=memory.total_bytes,
        parameters=memory.parameter_bytes,
        kv=memory.total_bytes - memory.parameter_bytes - memory.free_bytes,
        free=memory.free_bytes,
        components=memory.residence.components,
        waiting=state.waiting,
        running=state.running,
        sweep=state.number,
        sweep_age=lateness,
        counters={name: float(value) for name, value in counters.items()},
        kv_by_tenant=memory.pages.accounts.all_held(),
        served_by_tenant=dict(state.parts.queue.share.served),
        kv_cap_hits=dict(memory.cap_hits),
        parameters_by_application=memory.residence.bytes_by_holder(),
        kv_by_application=state.kv_by_application(),
        slow=slow,
    )


def reading_of(state: SweepState) -> MemoryReading:
    """Costs work for each sequence, none for its pages."""
    memory, rows, size = state.parts.memory, state.parts.rows, state.config.page_size
    local = next((one for one in state.parts.routes.all_in_force() if one.spans), None)
    waiting = {
        s: -(-rows.length[s] // size)
        for s in (rows.live() if state.waiting else ())
        if not rows.is_guest(s)
        and rows.status[s] != Status.RUNNING
        and (rows.status[s] != Status.LEAVING or rows.requeue[s])
    }
    held, idle = used_blocks(memory, 1), 0
    for arena, count in memory.pages.idle.slots.items():
        idle += count * memory.pages.allocator(arena).slot_bytes
    pages = used = 0
    if local is not None:
        pages = memory.pages_of(local.spans, "")
        used = min(used_blocks(memory, memory.page_bytes(local.spans)), pages)
    return MemoryReading(
        budget=memory.total_bytes,
        parameters=memory.parameter_bytes,
        kv=held,
        cached=idle,
        pages=pages,
        used=used,
        head=waiting.get(state.parts.queue.first(), 0) if waiting else 0,
        waiting=sum(waiting.values()),
    )
