"""Assembly of the answer to ``status``: a worker's memory, load and counters."""

from __future__ import annotations

import os

from ...policies.prediction.load import used_blocks
from ...policies.sweep.state import SweepState
from .messages import WorkerConfig, WorkerStatus


def status_of(
    config: WorkerConfig,
    state: SweepState,
    incarnation: int,
    numerics: str,
    lateness: float,
    figures: dict[str, float],
    slow: str,
) -> WorkerStatus:
    """Return the worker's status.

    ``lateness``: see ``Device``. ``figures`` are counters of its sweeps. ``slow`` is the reason why it computes slowly, or
    "".
    """
    memory, kv = state.parts.memory, used_blocks(state.parts.memory, 1)
    counters = {**state.counters, **figures}
    counters |= {"cached_pages": memory.pages.cached, "pages_shared_now": memory.pages.shared_now()}
    counters["hidden_pages"] = state.hidden_pages
    return WorkerStatus(
        name=config.name,
        incarnation=incarnation,
        pid=os.getpid(),
        device=config.worker.device,
        numerics=numerics,
        budget=memory.total_bytes,
        parameters=memory.parameter_bytes,
        kv=kv,
        cached=memory.total_bytes - memory.parameter_bytes - memory.free_bytes - kv,
        free=memory.free_bytes,
        components=memory.residence.components,
        waiting=state.awaiting,
        running=state.running,
        sweep=state.number,
        sweep_age=lateness,
        counters={name: float(value) for name, value in counters.items()},
        kv_by_tenant=memory.pages.accounts.all_held(),
        served_by_tenant=dict(state.parts.queue.share.served),
        kv_cap_hits=dict(memory.cap_hits),
        parameters_by_application=memory.residence.bytes_by_holder(),
        # expensive: it looks at every tensor of every application
        left_alone=memory.left_alone() if config.on_demand else {},
        kv_by_application=state.kv_by_application(),
        slow=slow,
    )
