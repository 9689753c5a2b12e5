"""A process as an actor: it launches a node, lives as long as the node does, and ends with the cause of its end.

So a supervisor restarts processes as it restarts actors, by the same policy, and ``ps --actors`` shows both in one tree. Its
name is the node's. A node whose actor is gone ends too: what its entry starts is owned by this one (``start_inside``).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import Any, Protocol

from ..actor.actor import Actor
from ..actor.endpoint import endpoint
from ..base.errors import ActorDied


class Nodes(Protocol):
    """The part of the head's ``Cluster`` that a process needs."""

    @property
    def stopping(self) -> bool:
        """Every node is about to be ended, all at once."""

    async def launch(self, name: str, entry: str, config: Any) -> int: ...

    async def ended(self, name: str) -> str: ...

    async def kill(self, name: str, cause: str) -> None: ...


class JoinedNodes(Protocol):
    """The part of the head's ``Cluster`` that stands for nodes that joined by themselves."""

    async def ended(self, name: str) -> str: ...

    async def kill(self, name: str, cause: str) -> None: ...

    def dismiss(self, name: str, incarnation: int) -> None: ...

    def claim(self, name: str, incarnation: int) -> None: ...


class JoinedProcess(Actor):
    """A process that joined by itself, and has no supervisor here: the actor that stands for it at the head.

    What the node's entry starts is owned by this one (``start_inside``). It ends with that life of the node, whose name it
    has.
    """

    def __init__(self, nodes: JoinedNodes, incarnation: int) -> None:
        self._nodes = nodes
        self._incarnation = incarnation
        self._over = False

    async def on_start(self) -> None:
        self._nodes.claim(self.ref.name, self._incarnation)
        self._task = asyncio.get_running_loop().create_task(self._follow(), context=contextvars.Context())

    async def on_stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._nodes.dismiss(self.ref.name, self._incarnation)

    @endpoint
    async def dismiss(self, incarnation: int) -> None:
        """Ask that life of the node to stop in order. Its starter decides whether it comes again."""
        self._nodes.dismiss(self.ref.name, incarnation)

    @endpoint(concurrent=True)
    async def kill(self, cause: str) -> None:
        """Fence the node for this cause (a cast): it ends when it hears of it."""
        if not self._over:
            await self._nodes.kill(self.ref.name, cause)

    async def _follow(self) -> None:
        cause = await self._nodes.ended(self.ref.name)
        self._over = True
        with contextlib.suppress(ActorDied):
            self.node.end(self.ref.address, cause)


class Process(Actor):
    """See the module. ``entry``, ``config``: see ``Cluster.launch``. Its start does not wait for the node to be up."""

    def __init__(self, nodes: Nodes, entry: str, config: Any) -> None:
        self._nodes = nodes
        self._entry = entry
        self._config = config
        self._launched = False

    async def on_start(self) -> None:
        # In a context of its own: the deadline of the start request must not end what follows the node.
        self._task = asyncio.get_running_loop().create_task(self._follow(), context=contextvars.Context())

    async def on_stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._launched and not self._nodes.stopping:
            await self._nodes.kill(self.ref.name, "stopped by its supervisor")

    @endpoint(concurrent=True)
    async def kill(self, cause: str) -> None:
        """End the node with SIGKILL, and this actor with it, for this cause (a cast). Its supervisor starts another."""
        if self._launched:
            await self._nodes.kill(self.ref.name, cause)

    async def _follow(self) -> None:
        name = self.ref.name
        try:
            await self._nodes.launch(name, self._entry, self._config)
            self._launched = True
            cause = await self._nodes.ended(name)
        except Exception as error:  # whatever the launcher raises: there is no process
            cause = f"not started: {error}"
        with contextlib.suppress(ActorDied):  # it was killed, and its node went with it
            self.node.end(self.ref.address, cause)
