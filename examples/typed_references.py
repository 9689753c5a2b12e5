"""Typed references: mypy or pyright finds a wrong argument before the program runs.

A reference made with its actor's class (``spawn``, ``ref``, ``lookup``) knows the actor's endpoints, their parameters and
results. Deliberate errors are marked, and ``make types`` fails if a mark is not needed any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

from blockwright.runtime import Actor, Down, LocalCluster, Ref, endpoint, run


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0
        self.added: list[int] = []

    @endpoint
    async def add(self, n: int, *, twice: bool = False) -> int:
        self.added.append(n)
        self.total += 2 * n if twice else n
        return self.total

    @endpoint
    async def history(self) -> AsyncIterator[int]:
        for n in self.added:
            yield n

    @endpoint(urgent=True)
    async def reset(self) -> None:
        self.total = 0


class Watcher(Actor):
    @endpoint(concurrent=True)
    async def watch(self, address: str) -> str:
        counter = self.node.ref(address, Counter)
        self.monitor(counter)  # takes a reference of any type
        assert_type(await counter.add(0, timeout=1.0), int)
        return str(counter.ref)  # what every reference has, its address and node for instance, has ``.ref``

    async def on_down(self, down: Down) -> None:
        """What it watched is over."""


async def mistakes(counter: Counter) -> None:
    await counter.add("one")  # type: ignore[call-overload]
    await counter.add()  # type: ignore[call-overload]
    await counter.addd(1)  # type: ignore[attr-defined]
    counter.add.cast(n="one")  # type: ignore[arg-type]
    await counter.history()  # type: ignore[misc]


async def main() -> None:
    async with LocalCluster(1) as cluster:
        counter = await cluster.node.spawn(Counter, name="counter", on="w0")
        assert_type(await counter.add(1), int)
        total = await counter.add(2, twice=True)
        print(assert_type(total, int))
        counter.add.cast(3)
        print([assert_type(n, int) async for n in counter.history()])
        await counter.reset()

        watcher = await cluster.node.spawn(Watcher, name="watcher", on="w0")
        assert_type(await watcher.watch("w0/counter"), str)
        assert_type(cluster.node.ref("w0/counter"), Ref)  # by name alone: nothing is known of it, and every use fits
        await cluster.node.stop_actor(counter)


if __name__ == "__main__":
    run(main())
