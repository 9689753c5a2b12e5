"""The cluster's memory actor, at the head: watches KV demand, and has the controller drop and restore parameters.

While a worker is busy, or a group is no replica, it asks the memory actors of all workers every ``PERIOD`` seconds; at
rest no timer runs, and a heartbeat that reports work wakes it. ``policies/control/memory_decisions.py`` decides by the
readings. The controller reports the groups, and has the last word on whether an order is possible now. Owns the readings
and the decisions' state; what is lost with its end is reported to it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ...policies.control.drop_events import MemoryGroups, MemoryOrder
from ...policies.control.memory_decisions import MemoryDecisions
from ...policies.overload.coordinator import OverloadRules
from ...policies.overload.demand import PERIOD
from ...policies.overload.message_throttle import MessageThrottle
from ...policies.overload.pool_reading import PoolReading
from ...policies.plan.coefficients import Coefficients
from ...runtime.actor.actor import Actor, PeerInfo
from ...runtime.actor.endpoint import endpoint
from ...runtime.base.errors import RuntimeFault
from ...transport.clock import Timer
from ..cost_file import read_costs
from ..settings.parameter_drops import ParameterDropSettings
from ..settings.workers import WorkerSettings

log = logging.getLogger("blockwright.memory")
ASK_SECONDS = 1.0  # timeout of a worker; the group of a late one is left out
SHOWN = 600  # readings kept of each worker: a minute
EVEN = Coefficients(read=1.0)  # without a measurement, stages take time by their bytes


class ClusterMemory(Actor):
    """The memory actor of a cluster (see the module). ``controller``: its address."""

    def __init__(self, drops: ParameterDropSettings, worker: WorkerSettings, controller: str) -> None:
        rules = OverloadRules(throttled=drops.overload_throttled, quiet=drops.overload_quiet, horizon=drops.overload_horizon)
        costs = read_costs(worker.profile or worker.pace) or EVEN
        self._decisions = MemoryDecisions(rules, costs, drops.overload_most)
        self._controller = controller
        self._refusals = MessageThrottle()
        self._shown: dict[str, deque[dict[str, Any]]] = {}  # by worker
        self._timer: Timer | None = None
        self._looking = False

    async def on_start(self) -> None:
        self._deafen = self.node.on_heartbeat(self._beat)

    async def on_stop(self) -> None:
        self._deafen()
        if self._timer is not None:
            self._timer.cancel()

    @endpoint(urgent=True)
    async def wake(self) -> None:
        """Look now: a head before this one has left parameters dropped, and perhaps no load makes this actor look."""
        if not self._looking:
            self._look_after(0.0)

    @endpoint(urgent=True)
    async def view(self) -> dict[str, Any]:
        """Return the readings of the last minute with load, by worker, oldest first, ``at`` in seconds since the epoch."""
        behind = time.time() - self.node.clock.now()
        shown = {name: [one | {"at": round(one["at"] + behind, 3)} for one in seen] for name, seen in self._shown.items()}
        return {"readings": shown}

    # periodic readings ---------------------------------------------------------------------------------------------

    def _beat(self, peer: PeerInfo) -> None:
        if not self._looking and (peer.payload.get("running") or peer.payload.get("waiting")):
            self._look_after(0.0)

    def _look_after(self, seconds: float) -> None:
        self._looking = True
        self._timer = self.node.clock.call_at(
            self.node.clock.now() + seconds, lambda: self.node.post(self.ref.address, self._look)
        )

    async def _look(self) -> None:
        """Take one reading, and another one soon while there is something to see."""
        try:
            again = await self._looked()
        except RuntimeFault as fault:  # the controller is busy, or ends
            log.debug("no look at memory: %s", fault)
            again = True
        self._looking = False
        if again:
            self._look_after(PERIOD)

    async def _looked(self) -> bool:
        kind: Any = MemoryGroups | None
        controller = self.node.ref(self._controller)
        changed: MemoryGroups | None = await controller.groups(self._decisions.version, timeout=ASK_SECONDS, returns=kind)
        readings = await self._read(self._decisions.workers(changed))
        now = self.node.clock.now()
        self._show(now, readings)
        for order in self._decisions.read(now, changed, readings):
            await self._ask(order)
        return not self._decisions.resting or any(reading.used or reading.waiting for reading in readings.values())

    async def _ask(self, order: MemoryOrder) -> None:
        why: str = await self.node.ref(self._controller).change_parameters(order, timeout=ASK_SECONDS, returns=str)
        if why:
            if self._refusals.news(why, self.node.clock.now()):  # it may be refused at every reading
                log.info("the controller does not carry out %s: %s", order, why)
            self._decisions.refused()

    async def _read(self, names: Sequence[str]) -> dict[str, PoolReading]:
        """Return the readings of these workers, as far as they answer."""
        asked = [self.node.ref(f"{name}/memory").reading(timeout=ASK_SECONDS, returns=PoolReading) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {name: a for name, a in zip(names, answers, strict=True) if isinstance(a, PoolReading)}

    def _show(self, now: float, readings: Mapping[str, PoolReading]) -> None:
        for name, reading in readings.items():
            seen = self._shown.setdefault(name, deque(maxlen=SHOWN))
            kinds = {"parameters": reading.parameters, "kv": reading.kv, "cached": reading.cached, "budget": reading.budget}
            seen.append({"at": now, **kinds, "waiting_pages": reading.waiting})
