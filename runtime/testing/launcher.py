"""The launcher of a simulation: each node is a life of the virtual loop, with a transport on the simulated network.

Owns stopping, going on and killing of lives, and reports an end to the head as a process's exit would be: later, on the
head's own loop turn. A killed life is kept, never run: what its tasks would do on their way out, a killed process does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.loopback import LoopbackTransport
from ..cluster.inprocess import InProcessLauncher
from ..cluster.launcher import NodeSpec, OnExit
from ..node.node import Node
from .loop import LIFE, Life, VirtualLoop
from .network import SimulatedNetwork

EXIT_DELAY = (0.0005, 0.02)  # seconds until the head learns of an exit


class SimulatedLauncher(InProcessLauncher):
    """See the module and ``Launcher``."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: VirtualLoop,
        random: Random,
        program: Callable[[Node], Awaitable[None]],
    ) -> None:
        super().__init__(network=network)
        self._program = program
        self.lives: dict[PeerId, Life] = {}  # all that ever were
        self._loop, self._random = loop, random
        self._head: Life | None = None  # the one that ends are reported to
        self._past: list[Life] = []  # heads that it had before
        self._heads: dict[PeerId, LoopbackTransport] = {}
        self._kept: list[set[asyncio.Task[Any]]] = []  # the loop refers to tasks weakly

    async def start(self, on_exit: OnExit) -> None:
        if self._head is not None:
            self._past.append(self._head)
        self._head, head = LIFE.get(), contextvars.copy_context()
        self._tell(on_exit)

        def report(node: PeerId, status: int) -> None:
            self._loop.call_later(self._random.uniform(*EXIT_DELAY), on_exit, node, status, context=head.copy())

        await super().start(report)

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        self._heads[head] = made = self.network.transport(head, lasting=True)
        return made

    def listens(self, head: PeerId) -> bool:
        """Return True if that head has begun, and has not ended."""
        return head in self._heads

    def behead(self, head: PeerId, life: Life) -> None:
        """Kill the head; what it launched goes on."""
        self._kept.append(asyncio.all_tasks(self._loop))
        life.running = False
        self.network.cut(self._heads.pop(head).place)
        if life is self._head:
            self._on_exit = self._keep

    async def leave(self) -> None:
        if LIFE.get() is self._head:
            await super().leave()

    async def spawn(self, spec: NodeSpec) -> int:
        self._check(f"starts {spec.id}")
        self._numbers[spec.name] = spec.incarnation
        self.lives[spec.id] = life = Life(str(spec.id), self._program)
        return await self._loop.create_task(super().spawn(spec), context=life.context.copy())

    def kill(self, node: PeerId) -> None:
        if node not in self._tasks:
            return
        self._check(f"kills {node}")
        del self._tasks[node]
        self._kept.append(asyncio.all_tasks(self._loop))
        self.lives[node].running = False
        self.network.cut(self._transports.pop(node).place)
        self._on_exit(node, -signal.SIGKILL)

    def _check(self, act: str) -> None:
        """Raise AssertionError if an earlier head acts on what belongs to a later one."""
        if (life := LIFE.get()) in self._past:
            raise AssertionError(f"{life} {act}, though {self._head} is the head")

    def pause(self, node: PeerId) -> None:
        """Pause the process like SIGSTOP."""
        if node in self._tasks:
            self.lives[node].running = False

    def resume(self, node: PeerId) -> None:
        """Resume the process like SIGCONT. Does nothing to a process that was killed meanwhile."""
        if node in self._tasks and not self.lives[node].running:
            self._loop.resume(self.lives[node])

    async def stop(self) -> None:
        for node in list(self._tasks):
            self.kill(node)
