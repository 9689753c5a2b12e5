"""Time for which a large offline job blocks an event loop, for ``offline_order.py``.

A driver with a feed, workers that answer at once, and beside them a task that sleeps for a millisecond again and again. The
time by which it oversleeps is a turn in which another task would have waited. Samples run, costs become known, a worker
joins, one ends, and one without work takes some from the others.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from blockwright.actors.batches.port import Answered
    from blockwright.actors.gateway.port import Credit
    from blockwright.policies.offline.feed import PlacedRequest

NAP = 0.001  # seconds
ROOM, ROWS = 40_000, 32  # of a worker: positions and sequences
ANSWERS = 300  # requests that end before the next thing happens


class _Workers:
    """As a gateway's port."""

    def __init__(self) -> None:
        self.rows = {"w0": ROWS, "w1": ROWS}
        self.costs: Any = None
        self._grown = asyncio.Event()

    def credits(self, application: str) -> list[Credit]:
        from blockwright.actors.gateway.port import Credit

        return [
            Credit(worker=name, rows=rows, positions=ROOM // 2, room=ROOM, costs=self.costs)
            for name, rows in self.rows.items()
        ]

    async def credit_grown(self) -> None:
        await self._grown.wait()
        self._grown.clear()

    def take(self, worker: str, rows: int) -> None:
        """Of one that may have ended since."""
        if worker in self.rows:
            self.rows[worker] -= rows

    def grow(self) -> None:
        self._grown.set()


def turns(prompts: Sequence[bytes]) -> dict[str, float]:
    """Milliseconds: the longest turn of the loop, and the most processor time that the loop itself took in one."""
    gc.collect()
    gc.freeze()  # as a server does
    return asyncio.run(_turns(prompts))


async def _turns(prompts: Sequence[bytes]) -> dict[str, float]:
    from blockwright.actors.batches.driver import NOMINAL, FeedDriver
    from blockwright.actors.batches.port import Answered
    from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest
    from blockwright.policies.plan.coefficients import Coefficients
    from blockwright.runtime.base.clock import LoopClock

    random = Random(3)
    port = _Workers()
    slept = list[tuple[float, float]]()
    ended = 0
    drawn = [random.random() for _ in prompts]
    moved, watching = asyncio.Event(), asyncio.create_task(_watch(slept))

    def made() -> OfflineFeed:
        """Nobody keeps the requests, as in a server."""
        requests = [OfflineRequest(prompt=prompt, limit=random.choice([64, 256, 2000])) for prompt in prompts]
        return OfflineFeed(requests, NOMINAL, draws=drawn, memory=ROOM)

    feed = await asyncio.to_thread(made)

    async def answer(placed: PlacedRequest, sent: Callable[[], None]) -> Answered:
        nonlocal ended
        sent()
        port.take(placed.worker, 1)
        await asyncio.sleep(10 * NAP)
        ended += 1
        moved.set()
        port.take(placed.worker, -1)
        port.grow()
        return Answered(random.randrange(1, 60))

    driver = FeedDriver(cast(Any, port), "tiny", feed, answer, LoopClock())
    running = asyncio.create_task(driver.run())
    running.add_done_callback(lambda _: moved.set())
    for happens in (
        lambda: None,
        lambda: setattr(port, "costs", Coefficients(token=1e-4, context=1e-7)),
        lambda: port.rows.update(w2=ROWS),
        lambda: port.rows.pop("w0"),
        lambda: port.rows.update(w3=4 * ROWS),
    ):
        happens()
        port.grow()
        until = ended + ANSWERS
        while not running.done() and (ended < until or feed.stale):
            moved.clear()
            await moved.wait()
    driver.stop(cancel=True)
    await running
    watching.cancel()
    return {
        "turn_ms": 1000 * max(wall for wall, _ in slept),
        "own_ms": 1000 * max(own for _, own in slept),
        "answers": float(ended),
    }


async def _watch(slept: list[tuple[float, float]]) -> None:
    """What each nap took beyond its time, and the loop's own processor time in it."""
    while True:
        wall, own = time.perf_counter(), time.thread_time()
        await asyncio.sleep(NAP)
        slept.append((time.perf_counter() - wall - NAP, time.thread_time() - own))
