"""The controller's calls to gateways and to the workers' supervisor for starting and stopping workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...runtime.actor.actor import ActorNode
from ...runtime.base.errors import ActorDied
from ...runtime.supervisor import Supervisor
from .messages import (
    ScalingEffect,
    ScalingEvent,
    StartWorker,
    StopWorker,
    Vacated,
    VacateWorker,
    WorkerStopped,
)
from .state import ControllerState

ANSWER_SECONDS = 5.0  # timeout of a gateway's answer, beyond the grace
STOP_SECONDS = 60.0  # timeout for a killed process to end


async def scale(
    effect: ScalingEffect,
    node: ActorNode,
    gateways: Sequence[str],
    publishing: asyncio.Lock,
    state: ControllerState,
    handle: Callable[[ScalingEvent], object],
) -> None:
    """Carry out an effect. ``publishing``: the lock held while a publication leaves. ``handle``: takes the answer."""
    supervisor = node.ref(f"{node.name}/workers", Supervisor)
    match effect:
        case StartWorker(worker, _):
            with suppress(ActorDied):  # the cluster stops, the supervisor with it
                await supervisor.start_child(worker)
        case VacateWorker(worker, grace, _):
            async with publishing:
                version = state.version
            asked = [node.ref(g).vacated(worker, version, grace, timeout=grace + ANSWER_SECONDS) for g in gateways]
            await asyncio.gather(*asked, return_exceptions=True)  # a gateway that is gone has nothing there
            handle(Vacated(worker))
        case StopWorker(worker):
            try:
                with suppress(ActorDied):  # as above
                    await supervisor.stop_child(worker, timeout=STOP_SECONDS)
            finally:
                handle(WorkerStopped(worker))
