"""The memory actor of a worker's node: reports the worker's parameters, KV, free memory, and waiting requests.

It asks the worker, on the same node, when it is asked itself; at rest it does nothing.
"""

from __future__ import annotations

from ...policies.overload.pool_reading import PoolReading
from ...runtime.actor.actor import Actor
from ...runtime.actor.endpoint import endpoint


class NodeMemory(Actor):
    """The memory actor of one worker (see the module)."""

    async def on_start(self) -> None:
        self._worker = self.node.ref(f"{self.node.name}/worker")

    @endpoint(urgent=True)
    async def reading(self) -> PoolReading:
        reading: PoolReading = await self._worker.pool(returns=PoolReading)
        return reading
