"""The memory actor of a worker's node: answers for its budget what parameters and KV take, what is free, what waits for it.

Asks the worker, beside which it lives, when somebody asks it; at rest it does nothing.
"""

from __future__ import annotations

from ...policies.overload.pool_reading import PoolReading
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint


class NodeMemory(Actor):
    """See the module."""

    async def on_start(self) -> None:
        self._worker = self.node.ref(f"{self.node.name}/worker")

    @endpoint(urgent=True)
    async def reading(self) -> PoolReading:
        reading: PoolReading = await self._worker.pool(returns=PoolReading)
        return reading
