"""The further gateway processes, as the head keeps them: started, told of, started again, drained.

Owns their lives. With one gateway there is nothing here to do. A process that ends takes its connections with it (its
sequences are freed by the workers, who watch it) and is replaced after a pause that grows while it dies young.
"""

from __future__ import annotations

import asyncio
import logging

from blockwright.actors.config import Settings
from blockwright.actors.topology import Running, gateway_nodes
from blockwright.api.http.context import Front
from blockwright.api.serve.gateway_peer import PATIENCE, Desk
from blockwright.api.serve.gateway_process import GatewayConfig
from blockwright.policies.cluster.restart_policy import Backoff
from blockwright.runtime.base.down import Down
from blockwright.runtime.base.errors import RuntimeFault

log = logging.getLogger(__name__)
ENTRY = "blockwright.api.serve.gateway_process:start"
BACKOFF = Backoff(initial=0.25, most=8.0, jitter=0.0)  # one process at a time: nobody to keep apart
OLD = 10.0  # seconds after which a process has lived


class Gateways:
    """See the module. ``port``: the one that the head listens on."""

    def __init__(self, running: Running, front: Front, settings: Settings, port: int) -> None:
        self._running, self._settings, self._port = running, settings, port
        self._names = gateway_nodes(settings)[1:]
        self.desk = Desk(front, self._names)
        self._failures = dict.fromkeys(self._names, 0)
        self._born = dict.fromkeys(self._names, 0.0)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin; the processes come up behind it."""
        cluster = self._running.cluster
        await cluster.node.spawn(self.desk, name="desk")
        cluster.on_up(self._up)
        cluster.on_down(self._down)
        for name in self._names:
            self._later(name, 0.0)

    async def drain(self, seconds: float) -> None:
        """Not ready anywhere; returns when nothing runs in any process or the time is over."""
        node = self._running.cluster.node
        there = [name for name in self._names if name in node.peers()]
        calls = [node.ref(f"{name}/desk", Desk).drain(seconds, timeout=seconds + PATIENCE) for name in there]
        for answer in await asyncio.gather(self._running.port.drain(seconds), *calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, RuntimeFault):
                raise answer

    async def stop(self) -> None:
        """Start nothing any more; the cluster's own end stops the processes."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _up(self, name: str, incarnation: int) -> None:
        if name in self._failures:
            self._born[name] = asyncio.get_running_loop().time()
            self._running.controller.gateway_up(f"{name}/gateway")

    def _down(self, down: Down) -> None:
        name = down.node
        if name not in self._failures:
            return
        self._running.controller.gateway_down(f"{name}/gateway")
        lived = asyncio.get_running_loop().time() - self._born[name]
        failures = self._failures[name] = 0 if self._born[name] and lived > OLD else self._failures[name] + 1
        pause = BACKOFF.delay(max(1, failures), 0.0)
        log.warning("gateway process %s ended (%s); another is started in %.2f s", name, down.cause, pause)
        self._later(name, pause)

    def _later(self, name: str, pause: float) -> None:
        task = asyncio.create_task(self._launch(name, pause))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _launch(self, name: str, pause: float) -> None:
        await asyncio.sleep(pause)
        others = [other for other in gateway_nodes(self._settings) if other != name]
        models = list(self._running.gateway.state.catalogue.configured.values())
        config = GatewayConfig(self._settings, models, self._port, others, self._running.gateway.limiter)
        try:
            await self._running.cluster.launch(name, ENTRY, config)
        except Exception as error:  # whatever the launcher raises: the process is not there
            log.warning("gateway process %s could not be started: %s", name, error)
            self._failures[name] += 1
            self._later(name, BACKOFF.delay(self._failures[name], 0.0))
