"""Procedures that empty a drained worker or ending routes of this gateway's requests, and wait until that is done.

Requests move with their KV if the copy is quick enough.
"""

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
    """Move all requests off a worker; return when none is left there.

    order: the worker, the version of the routes without it, and the seconds that requests have. A request that is still
    there after that time is given back, unless the worker serves again meanwhile.
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
    """Carry out a switch; return the number of stale requests once none is left on the ending routes."""
    await until(lambda: state.table.version >= order.version)
    handle(order)
    switching = state.moving.switching
    await until(lambda: switching.off(order.number))
    return switching.figures(order.number).stale
