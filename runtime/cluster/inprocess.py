"""The in-process launcher: nodes on the head's own event loop, messages over the loopback transport.

Messages are encoded as between processes, so that what works here works there; only the process boundary is missing. For
tests of whole systems, where it starts and kills nodes in microseconds.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping

from ...transport.address import PeerId
from ...transport.clock import Clock
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.loopback import LoopbackTransport, Network
from .launcher import Launcher, NodeSpec, OnExit
from .node_process import run_node

log = logging.getLogger("blockwright.runtime")


class InProcessLauncher(Launcher):
    """See the module and ``Launcher``."""

    directory = ""

    def __init__(self, *, clock: Clock | None = None, network: Network | None = None) -> None:
        self.network = Network() if network is None else network
        self._clock = clock
        self._transports: dict[PeerId, LoopbackTransport] = {}
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}
        self._numbers: dict[str, int] = {}
        self._untold: list[tuple[PeerId, int]] = []  # ends that no head has heard of

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._tell(on_exit)

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return self.network.transport(head, lasting=True)

    def spawned(self) -> Mapping[str, int]:
        return self._numbers

    async def spawn(self, spec: NodeSpec) -> int:
        self._numbers[spec.name] = spec.incarnation
        self._transports[spec.id] = transport = self.network.transport(spec.id)
        self._tasks[spec.id] = task = asyncio.get_running_loop().create_task(
            run_node(spec, transport=transport, clock=self._clock), name=str(spec.id)
        )
        task.add_done_callback(lambda done: self._ended(spec.id, done))
        return 0

    def kill(self, node: PeerId) -> None:
        """Kill the node: peers see it gone at once.

        Its actors' ``on_stop`` then runs, cut off, to free the resources that a process's end would free.
        """
        if (task := self._tasks.get(node)) is not None:
            self.network.cut(self._transports[node].place)
            task.cancel()

    def freeze(self, node: PeerId) -> None:
        """Freeze the node as SIGSTOP would: it neither receives nor sends, until killed."""
        self.network.freeze(self._transports[node].place)

    def list(self) -> dict[PeerId, int]:
        return dict.fromkeys(self._tasks, 0)

    async def leave(self) -> None:
        """Report no more ends to this head; ``start`` of a later one goes on."""
        self._on_exit = self._keep

    def _tell(self, on_exit: OnExit) -> None:
        untold, self._untold = self._untold, []
        for node, status in untold:
            on_exit(node, status)

    def _keep(self, node: PeerId, status: int) -> None:
        self._untold.append((node, status))

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for node in list(self._tasks):
            self.kill(node)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, node: PeerId, task: asyncio.Task[None]) -> None:
        del self._tasks[node]
        self._transports.pop(node).close()
        status = 0
        if task.cancelled():
            status = -signal.SIGKILL
        elif (error := task.exception()) is not None:
            log.error("node %s failed", node, exc_info=error)
            status = 1
        self._on_exit(node, status)
