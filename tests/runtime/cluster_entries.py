"""Entry points that the tests' nodes are started with, in this process and in others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

import numpy as np

from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.base.address import Address


@dataclass(frozen=True)
class CounterConfig:
    start: int = 0
    blobs: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Status:
    pid: int
    count: int
    blobs: list[int]
    ignores_interrupt: bool


class Counter(Actor):
    def __init__(self, config: CounterConfig) -> None:
        self.config = config
        self.count = config.start
        self.cancelled = 0

    @endpoint
    async def add(self, n: int) -> int:
        self.count += n
        return self.count

    @endpoint(concurrent=True)
    async def status(self) -> Status:
        ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return Status(os.getpid(), self.count, [len(b) for b in self.config.blobs], ignores)

    @endpoint
    async def double(self, array: np.ndarray) -> np.ndarray:
        return array * 2

    @endpoint
    async def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint(concurrent=True)
    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    @endpoint(concurrent=True)
    async def cancellations(self) -> int:
        return self.cancelled

    @endpoint
    async def block(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - a loop that hangs

    @endpoint(concurrent=True)
    async def ask(self, address: str, n: int) -> int:
        return await self.node.ref(address).add(n)


async def counter(node: Node, config: CounterConfig) -> None:
    await node.spawn(Counter(config), name="counter")


class Late(Actor):
    async def on_start(self) -> None:
        await asyncio.Event().wait()


async def owned(node: Node, config: CounterConfig) -> None:
    """Never up, as long as the head has an actor "owner"."""
    assert node.head is not None
    await node.spawn(Late(), name="late", owner=Address(node.head.name, "owner"))


async def broken(node: Node, config: CounterConfig) -> None:
    raise ValueError("this entry always fails")


async def never(node: Node, config: CounterConfig) -> None:
    await asyncio.Event().wait()


def not_async(node: Node, config: CounterConfig) -> None:
    pass


async def wait_for_head(node: Node, config: CounterConfig) -> None:
    """Never up: the head does not answer."""
    await node.ref("head/counter").wait()
