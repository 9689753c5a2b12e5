"""The answer to an operator who drains a worker, or ends the drain."""

from __future__ import annotations

from collections.abc import Callable

from ...policies.requests.refusal import Refusal
from ..gateway.port import DrainAnswered, RefusedChange
from .messages import DrainWorker, ScalingEvent
from .state import ControllerState


def drain_worker(
    state: ControllerState, worker: str, drain: bool, handle: Callable[[ScalingEvent], object]
) -> DrainAnswered:
    """Start or end a drain. Asking for the current state is no error."""
    if (known := state.workers.get(worker)) is None:
        message = f"worker {worker!r} does not exist; there are: {', '.join(state.workers)}"
        return DrainAnswered(refused=RefusedChange(Refusal.UNKNOWN_WORKER, message, "id"))
    if drain and worker not in state.scaling.drained and (why := state.scaling.undrainable(worker)):
        return DrainAnswered(refused=RefusedChange(Refusal.CONFLICT, f"worker {worker} cannot be drained: {why}", "id"))
    handle(DrainWorker(worker, drain))
    return DrainAnswered(running=known.running, waiting=known.waiting)
