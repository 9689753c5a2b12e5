"""The launcher of workers on a Ray cluster: the head's side.

Ray lies in a process of its own (``ray_driver.py``), so that neither its threads nor its end can hold the head up or end it;
that process is started with the first worker and again after its end. Messages to and from it are lines of JSON. Owns that
process, and what is known of each life of a worker; a join text travels through its standard input and Ray's call of an
actor, never in an environment or on a command line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.sockets import SocketTransport
from .launcher import Launcher, LaunchError, NodeSpec, OnExit

log = logging.getLogger("blockwright.runtime")
PROGRAM = "from blockwright.runtime.cluster.ray_driver import main; main()"
STOP = 20.0  # seconds that the driver may take to end its actors
LINE = 1 << 20
KILLED = -9  # the status of a worker whose end was not seen


def has_ray() -> bool:
    """Return whether the package is installed, without loading it."""
    return find_spec("ray") is not None


@dataclass(slots=True)
class _RayWorker:
    """One life of a worker on Ray. started: its process id, once it is known. pid: the same, or 0."""

    id: PeerId
    started: asyncio.Future[int]
    pid: int = 0


class RayLauncher(Launcher):
    """See the module. ``address``: of the Ray cluster; empty: the one of this machine."""

    directory = ""

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._workers: dict[str, _RayWorker] = {}  # by the name of their actor
        self._last_words: dict[PeerId, str] = {}
        self._driver: asyncio.subprocess.Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._stopping = False

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen, keys)

    def joins(self, name: str) -> bool:
        return True

    async def spawn(self, spec: NodeSpec) -> int:
        async with self._starting:
            if self._stopping:
                raise LaunchError(f"node {spec.id} is not started: the launcher was stopped")
            if self._driver is None:
                await self._open()
        actor = f"{spec.name}-{spec.incarnation}"
        self._workers[actor] = worker = _RayWorker(spec.id, asyncio.get_running_loop().create_future())
        self._say(do="spawn", actor=actor, text=spec.join_text, needs=dataclasses.asdict(spec.needs))
        try:
            return await worker.started
        except asyncio.CancelledError:  # the caller gave up
            self.kill(spec.id)
            raise

    def kill(self, node: PeerId) -> None:
        for actor, worker in self._workers.items():
            if worker.id == node:
                self._say(do="kill", actor=actor)

    def list(self) -> dict[PeerId, int]:
        return {worker.id: worker.pid for worker in self._workers.values() if worker.pid}

    def last_words(self, node: PeerId) -> str:
        return self._last_words.pop(node, "")

    async def stop(self) -> None:
        self._stopping = True
        if self._driver is None or self._following is None:
            return
        assert self._driver.stdin is not None, "it is a pipe"
        self._driver.stdin.close()
        done, _ = await asyncio.wait([self._following], timeout=STOP)
        if not done and self._driver is not None:
            self._driver.kill()  # Ray ends what it owned
            await self._following

    async def _open(self) -> None:
        """Start the driver."""
        self._driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, self._address,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE, start_new_session=True,
        )  # fmt: skip
        self._following = asyncio.get_running_loop().create_task(self._follow(self._driver))

    def _say(self, **message: Any) -> None:
        if self._driver is not None and self._driver.stdin is not None and not self._driver.stdin.is_closing():
            self._driver.stdin.write(json.dumps(message).encode() + b"\n")

    async def _follow(self, driver: asyncio.subprocess.Process) -> None:
        """Act on what the driver says until it ends; then all that it has started is over."""
        assert driver.stdout is not None, "it is a pipe"
        why = ""
        async for line in driver.stdout:
            said = json.loads(line)
            if said["event"] == "refused":
                why = said["why"]
            else:
                self._act(said)
        status = await driver.wait()
        self._driver = None
        log.log(logging.DEBUG if self._stopping else logging.WARNING, "the driver of Ray ended with %d", status)
        for actor in [*self._workers]:
            words = why or f"the driver of Ray ended with {status}, and its workers with it"
            self._act({"event": "ended", "actor": actor, "status": KILLED, "words": words})

    def _act(self, said: Mapping[str, Any]) -> None:
        if (worker := self._workers.get(said["actor"])) is None:
            return
        if said["event"] == "started":
            worker.pid = said["pid"]
            if worker.started.done():  # the caller gave up meanwhile
                self._say(do="kill", actor=said["actor"])
            else:
                worker.started.set_result(worker.pid)
            return
        del self._workers[said["actor"]]
        if not worker.pid:
            if not worker.started.done():
                worker.started.set_exception(LaunchError(f"node {worker.id} could not be started: {said['words']}"))
            return
        if said["words"]:
            self._last_words[worker.id] = said["words"]
        self._on_exit(worker.id, said["status"])
