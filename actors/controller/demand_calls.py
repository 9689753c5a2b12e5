"""The controller's calls to gateways for applications on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ...policies.cluster.demand import Use, combined
from ...runtime.actor.actor import ActorNode
from ...runtime.base.clock import first_within
from .messages import (
    AskUse,
    AwaitQuiet,
    DemandEffect,
    DemandEvent,
    LookAgain,
    LookLater,
    Quiet,
    Used,
)
from .state import ControllerState

ASK_SECONDS = 1.0  # a gateway later than this counts as having no requests
QUIET_SECONDS = 3600.0


async def perform(
    effect: DemandEffect,
    node: ActorNode,
    gateways: Sequence[str],
    publishing: asyncio.Lock,
    state: ControllerState,
    handle: Callable[[DemandEvent], object],
) -> None:
    """Carry out an effect. ``publishing``: the lock held while a publication leaves. ``handle``: takes the answer."""
    match effect:
        case AskUse():
            async with publishing:  # wait until earlier publications are out: requests they let start wait no more
                pass
            asked = [node.ref(g).uses(timeout=ASK_SECONDS, returns=dict[str, Use]) for g in gateways]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            handle(Used(combined(answer for answer in answers if isinstance(answer, dict))))
        case AwaitQuiet(application):
            async with publishing:
                version = state.version
            awaited = [node.ref(g).quiet(application, version, timeout=QUIET_SECONDS) for g in gateways]
            await asyncio.gather(*awaited, return_exceptions=True)  # a gateway that is gone has no requests
            handle(Quiet(application))
        case LookLater(seconds):
            await first_within(node.clock, seconds, ())
            handle(LookAgain())
