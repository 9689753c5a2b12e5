"""An actor whose streams do what tests ask, and a count of what streams leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from blockwright.runtime import Actor, endpoint


@dataclass(frozen=True)
class Row:
    number: int


class Source(Actor):
    """Writes down what its generators do."""

    def __init__(self) -> None:
        self.made = 0
        self.ended: list[str] = []
        self.seen: list[str] = []
        self.gate = asyncio.Event()

    @endpoint
    async def count(self, stop: int, size: int = 0) -> AsyncIterator[bytes | int]:
        self.seen.append("count")
        try:
            for number in range(stop):
                self.made += 1
                yield bytes(size) if size else number
        except (GeneratorExit, asyncio.CancelledError) as error:
            self.ended.append(type(error).__name__)
            raise
        finally:
            self.ended.append("end")

    @endpoint
    async def rows(self, stop: int) -> AsyncIterator[Row]:
        for number in range(stop):
            yield Row(number)

    @endpoint
    async def fails(self, after: int) -> AsyncIterator[int]:
        for number in range(after):
            yield number
        raise KeyError("lost")

    @endpoint
    async def unfit(self) -> AsyncIterator[int]:
        yield 1
        yield object()  # type: ignore[misc]

    @endpoint
    async def waits(self) -> AsyncIterator[int]:
        yield 0
        try:
            await self.gate.wait()
        finally:
            self.ended.append("waits")
        yield 1

    @endpoint
    async def stubborn(self) -> AsyncIterator[int]:
        while True:
            try:
                yield 0
                await self.gate.wait()
            except asyncio.CancelledError:
                self.ended.append("ignored")

    @endpoint
    async def note(self, text: str) -> None:
        self.seen.append(text)

    @endpoint
    async def hold(self) -> None:
        await self.gate.wait()

    @endpoint
    async def total(self, address: str, stop: int) -> int:
        return sum([number async for number in self.node.ref(address, Source).count(stop)])


async def read(stream: AsyncIterator[int], into: list[int]) -> None:
    async for number in stream:
        into.append(number)


def left_over(sides) -> int:
    """Streams that either side still knows."""
    peers = [p for n in (sides.caller, sides.callee) for p in [*n.table.current.values(), n.parts.itself]]
    cells = [c for n in {sides.caller, sides.callee} for c in [life.instance for life in n.actors.current.values()]]
    return sum(len(p.streams) + len(p.inbound) for p in peers) + sum(len(c.running) for c in cells)
