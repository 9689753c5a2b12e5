"""A streaming pipeline: a source, a stage on each of two processes, and a slow reader that none of them outruns.

    python examples/streaming_pipeline.py

Each stage reads the stream of the one before and is a stream itself, so credit passes from the reader to the source: however
fast the source could be, it is never more than a few windows ahead. The program prints how far ahead it got, and exits with
1 if anything is missing or out of order. Leaving early stops every stage.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from blockwright.runtime import Actor, LocalCluster, endpoint, run

ITEMS, LEAVE_AT = 2000, 50


class Source(Actor):
    """Numbers, as fast as they are taken."""

    def __init__(self) -> None:
        self.made = 0
        self._idle = asyncio.Event()

    @endpoint
    async def numbers(self, count: int) -> AsyncIterator[int]:
        self._idle.clear()
        try:
            for number in range(count):
                self.made = number + 1
                yield number
        finally:  # the reader has everything, or has left
            self._idle.set()

    @endpoint
    async def progress(self) -> int:
        """Numbers made so far."""
        return self.made

    @endpoint(concurrent=True)
    async def stopped(self) -> None:
        """Answers when no stream runs."""
        await self._idle.wait()


class Square(Actor):
    """A stage: what ``upstream`` gives, squared."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream

    @endpoint
    async def numbers(self, count: int) -> AsyncIterator[int]:
        async with self.node.ref(self.upstream, Source).numbers(count) as stream:
            async for number in stream:
                yield number * number


async def main() -> int:
    async with LocalCluster(2) as cluster:
        source = await cluster.node.spawn(Source, name="source", on="w0")
        stage = await cluster.node.spawn(Square, name="square", on="w1", args=("w0/source",))

        taken, ahead = [], 0
        async with stage.numbers(ITEMS) as stream:
            async for square in stream:
                taken.append(square)
                if len(taken) % 100 == 0:  # a reader that is slow now and then
                    ahead = max(ahead, await source.progress() - len(taken))
        print(f"{len(taken)} items in order, the source at most {ahead} ahead")

        async with stage.numbers(10**9) as stream:
            async for number in stream:
                if number >= LEAVE_AT**2:
                    break
        await source.stopped()
        print(f"left at {LEAVE_AT}: the source has stopped")
    return int(taken != [n * n for n in range(ITEMS)])


if __name__ == "__main__":
    sys.exit(run(main()))
