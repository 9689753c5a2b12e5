"""A predictor on a node with a worker that has a sweep machine and an event feed, and no device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from blockwright.actors.predictor.actor import Predictor
from blockwright.actors.worker.event_feed import EventFeed
from blockwright.actors.worker.event_recorder import Machine
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.runtime import Actor, Node, endpoint
from blockwright.tests.policies.event_tape import Driver, make_state
from blockwright.tests.waiting import until

COSTS = Coefficients(base=0.25, token=0.01)


class FedWorker(Actor):
    """Does what its driver says."""

    def __init__(self) -> None:
        self.state = make_state()
        self.machine: Machine = self.state

    async def on_start(self) -> None:
        self.events = EventFeed(self.state, self.state, self._stand, lambda: COSTS, asyncio.to_thread)
        self.driver = Driver(self.machine, self.state)  # type: ignore[arg-type]

    def _stand(self, machine: Machine) -> None:
        self.machine = self.driver.machine = machine  # type: ignore[assignment]

    @endpoint
    async def feed(self) -> AsyncIterator[bytes]:
        async with aclosing(self.events.follow()) as batches:
            async for batch in batches:
                yield batch


class PredictorRig:
    """See the module."""

    async def __aenter__(self) -> PredictorRig:
        self.node = Node("w0", listen=False)
        await self.node.start()
        await self.begin()
        self.predictor = Predictor("w0", {})
        self.ref = await self.node.spawn(self.predictor, name="predictor-w0")
        await self.follows()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.node.stop()

    async def begin(self) -> None:
        """A life of the worker."""
        self.worker = FedWorker()
        self.life = await self.node.spawn(self.worker, name="worker")

    async def follows(self) -> None:
        """Until the replica is what the worker is."""
        await until(lambda: self.digest() == self.worker.state.digest())

    def digest(self) -> bytes:
        replica = self.predictor._replica
        return replica.state.digest() if replica is not None else b""
