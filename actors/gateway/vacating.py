"""A worker is drained, or routes end: this gateway's requests leave, with their KV where that goes quickly enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ...policies.requests.routing_table import RoutingTable
from ...runtime.base.clock import Clock, first_within
from .messages import Event, Unsent, Vacate
from .record import RequestRecord
from .state import GatewayState
from .switch_messages import SwitchRoutes

Until = Callable[[Callable[[], bool]], Coroutine[Any, Any, None]]


async def vacate(
    table: RoutingTable,
    active: Mapping[str, RequestRecord],
    until: Until,
    handle: Callable[[Event], None],
    clock: Clock,
    order: tuple[str, int, float],
) -> None:
    """``order``: the worker, the version of the routes of which it is no part any more, seconds that requests have.

    Returns when none is there; what still is after that time is given back, unless the worker serves again meanwhile.
    """
    worker, version, grace = order

    async def empty() -> None:
        await until(lambda: table.version >= version)
        handle(Vacate(worker))
        await until(lambda: not table.on.get(worker) or table.serves(worker))

    emptied = asyncio.ensure_future(empty())
    try:
        await first_within(clock, grace, (emptied,))
    finally:
        emptied.cancel()
    for request in () if table.serves(worker) else sorted(table.on.get(worker, ())):
        handle(Unsent(request, active[request].attempt, f"worker {worker} is drained"))


async def switch(state: GatewayState, order: SwitchRoutes, until: Until, handle: Callable[[Event], None]) -> int:
    """Returns when none is on the routes that end; how many were."""
    await until(lambda: state.table.version >= order.version)
    handle(order)
    switching = state.moving.switching
    await until(lambda: switching.off(order.number))
    return switching.figures(order.number).stale
