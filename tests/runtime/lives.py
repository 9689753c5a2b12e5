"""Actors and nodes that the tests of lives, monitors and supervisors use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import numpy as np

from blockwright.runtime import Actor, Crash, Down, ManualClock, Node, endpoint
from blockwright.transport.address import PeerId
from blockwright.transport.loopback import Network

MAY_IMPORT = threading.Event()  # a module that a test imports waits for it


class Tally(Actor):
    """A count; it is of this life alone."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    async def add(self, by: int) -> int:
        self.count += by
        return self.count


class Mortal(Actor):
    """Does what tests ask, and dies on request; ``log`` outlives it."""

    def __init__(self, label: str = "", *, log: list[str] | None = None) -> None:
        self.label, self.log = label, [] if log is None else log
        self.gate = asyncio.Event()

    async def on_start(self) -> None:
        self.log.append(f"start {self.label}")

    async def on_stop(self) -> None:
        self.log.append(f"stop {self.label}")

    @endpoint
    async def echo(self, n: int) -> int:
        self.log.append(f"echo {n}")
        return n

    @endpoint
    async def hold(self, n: int = 0) -> int:
        self.log.append(f"hold {n}")
        await self.gate.wait()
        return n

    @endpoint(concurrent=True)
    async def beside(self) -> None:
        await asyncio.Event().wait()

    @endpoint(concurrent=True)
    async def aside(self, n: int) -> int:
        self.log.append(f"aside {n}")
        return n

    @endpoint
    async def crash(self, text: str = "on request") -> None:
        raise Crash(text)

    @endpoint(concurrent=True)
    async def crash_beside(self) -> None:
        raise Crash("beside")

    @endpoint
    async def crash_in_stream(self) -> AsyncIterator[int]:
        yield 1
        raise Crash("in a stream")

    @endpoint
    async def fail(self) -> None:
        raise KeyError("lost")

    @endpoint
    async def leave(self) -> str:
        await self.node.despawn(self.ref.name)
        return "left"

    @endpoint
    async def stop_itself(self) -> str:
        await self.node.stop_actor(self.ref)
        return "stopped"


class Brittle(Mortal):
    crashes_on = (KeyError,)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Nodes:
    """Nodes of one network under one manual clock, all acquainted."""

    def __init__(self) -> None:
        self.clock, self.network = ManualClock(), Network()
        self.all: list[Node] = []

    async def add(self, name: str, incarnation: int = 1) -> Node:
        transport = self.network.transport(PeerId(name, incarnation))
        node = Node(name, transport=transport, clock=self.clock, incarnation=incarnation)
        await node.start()
        for other in self.all:
            if other.open:
                node.peering.greet(other.id, other.endpoint)
        self.all.append(node)
        await turns()
        return node

    def cut(self, node: Node) -> None:
        """The node's process dies, as its peers see it."""
        self.network.cut(node.endpoint)

    async def advance(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await turns()

    async def stop(self) -> None:
        for node in reversed(self.all):
            await self.finish(node.stop())

    async def finish(self, awaitable):
        """Await something that needs time to pass."""
        task = asyncio.ensure_future(awaitable)
        for _ in range(400):
            await turns()
            if task.done():
                break
            self.clock.advance(0.25)
        assert task.done(), "it takes more than 100 s"
        return task.result()


@dataclass(frozen=True)
class Spot:
    x: int
    y: int = 0


class Placed(Actor):
    """Takes typed arguments; its start does what they say."""

    def __init__(self, spot: Spot, data: np.ndarray | None = None, *, loose=None, start: str = "") -> None:
        self.spot = spot
        self.data = data
        self.loose = loose
        self._start = start

    async def on_start(self) -> None:
        if self._start == "fail":
            raise ValueError("not here")
        if self._start == "hang":
            await asyncio.Event().wait()

    @endpoint
    async def where(self) -> str:
        return f"{self.node.name} {self.spot} {self.loose} {0 if self.data is None else int(self.data.sum())}"

    class Inner(Mortal):
        """Has a qualified name."""


class Witness(Actor):
    """Monitors and links on request; remembers what it hears."""

    def __init__(self) -> None:
        self.downs: list[Down] = []
        self.undos: list[Callable[[], None]] = []

    @endpoint
    async def observe(self, address: str) -> None:
        self.undos.append(self.monitor(self.node.ref(address)))

    @endpoint
    async def tie(self, address: str) -> None:
        self.link(self.node.ref(address))

    @endpoint
    async def untie(self, address: str) -> None:
        self.unlink(self.node.ref(address))

    @endpoint(concurrent=True)
    async def heard(self) -> list[str]:
        return [f"{down.ref} {down.cause}" for down in self.downs]

    @endpoint
    async def crash(self) -> None:
        raise Crash("witness")

    async def on_down(self, down: Down) -> None:
        self.downs.append(down)
