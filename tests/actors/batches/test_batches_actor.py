"""The actor that works on batches, with a desk that has nothing to compute."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from blockwright.actors.batches.actor import Batches
from blockwright.actors.batches.messages import BatchesSeen
from blockwright.actors.batches.port import BatchEnding, BatchService, LoadedBatch, OpenBatch
from blockwright.runtime.base.clock import ManualClock
from blockwright.runtime.node.node import Node
from blockwright.tests.waiting import until

SEEN = OpenBatch(id="a", account="", expires_at=1000.0)


class StoppingDesk:
    """Has the batch cancelled in the turn in which it is to run."""

    port: Any = None
    figures: Mapping[str, dict[str, Any]] = {}

    def __init__(self) -> None:
        self.written: list[BatchEnding] = []
        self.actor = Batches(cast(BatchService, self), lambda: 0.0)

    def claim(self) -> bool:
        return True

    def resign(self) -> None:
        pass

    async def seen(self) -> list[OpenBatch]:
        return [SEEN]

    async def load(self, batch: str) -> LoadedBatch:
        cancelled = BatchesSeen((replace(SEEN, ending=BatchEnding.CANCELLED),))
        loading = asyncio.current_task()
        assert loading is not None
        loading.add_done_callback(lambda _: self.actor._handle(cancelled))
        return LoadedBatch({}, {})

    async def write(self, batch: str, ending: BatchEnding) -> None:
        self.written.append(ending)

    async def record_figures(self, batch: str, figures: dict[str, Any]) -> None:
        pass

    def waits(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)

    def reason(self, batch: str) -> str:
        return self.reasons.get(batch, "")


async def test_a_batch_that_is_stopped_before_its_first_turn_is_written() -> None:
    """A task that is cancelled before its first turn runs no line of its own: the batch stayed cancelling for ever."""
    node = Node("head", listen=False, clock=ManualClock())
    await node.start()
    try:
        desk = StoppingDesk()
        ref = await node.spawn(desk.actor, name="batches")
        await ref.look()
        await until(lambda: desk.written)
        assert desk.written == [BatchEnding.CANCELLED]
    finally:
        await node.stop()
