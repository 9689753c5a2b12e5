"""The controller's calls to gateways when parameters are dropped or restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ...runtime.actor.actor import ActorNode
from ...runtime.base.clock import first_within
from ..gateway.switch_messages import SwitchFigures, SwitchRoutes
from .overload_messages import (
    AwaitSwitched,
    LoadAgain,
    LoadLater,
    OverloadEffect,
    OverloadEvent,
    RequestsSwitched,
    RoutesLeft,
    SwitchGateways,
)
from .state import ControllerState
from .worker_calls import ask_until_answered

LEAVE_SECONDS = 60.0  # timeout for a gateway's requests to leave routes
SWITCH_SECONDS = 120.0  # timeout for a gateway's requests to get their pages


async def switch(
    effect: OverloadEffect,
    node: ActorNode,
    gateways: Sequence[str],
    publishing: asyncio.Lock,
    state: ControllerState,
    handle: Callable[[OverloadEvent], object],
) -> None:
    """Carry out an effect. ``publishing``: the lock held while a publication leaves. ``handle``: takes the answer.

    A gateway that is gone has no requests.
    """
    refs = [node.ref(gateway) for gateway in gateways]
    match effect:
        case SwitchGateways(number, ended, to, dropped):
            async with publishing:
                order = SwitchRoutes(number, state.version, ended, to, dropped, len(refs))
            asked = [partial(ref.switch, order, timeout=LEAVE_SECONDS, returns=int) for ref in refs]
            answers = await asyncio.gather(*(ask_until_answered(node.clock, ask) for ask in asked), return_exceptions=True)
            handle(RoutesLeft(number, sum(answer for answer in answers if isinstance(answer, int))))
        case AwaitSwitched(number):
            asked = [partial(ref.switched, number, timeout=SWITCH_SECONDS, returns=SwitchFigures) for ref in refs]
            answers = await asyncio.gather(*(ask_until_answered(node.clock, ask) for ask in asked), return_exceptions=True)
            handle(RequestsSwitched(number, tuple(answer for answer in answers if isinstance(answer, SwitchFigures))))
        case LoadLater(worker, application, seconds):
            await first_within(node.clock, seconds, ())
            handle(LoadAgain(worker, application))
