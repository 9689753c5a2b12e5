"""The launcher of workers on a Ray cluster: the head's side.

Ray lies in a process of its own, the driver (``ray_driver.py``), so that neither its threads nor its end can hold the head
up or end it; it is started with the first worker and again after its end. The holder has its pipes (``holder.py``), so it
and its actors outlive a head that others follow, and the next one asks it for them. Messages to and from it are lines of
JSON. Owns what is known of each life of a worker; a join text travels through the driver's standard input and Ray's call of
an actor, never in an environment or on a command line.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from .held import HeldEnd, HeldProcesses, OpenHolder
from .launcher import Launcher, LaunchError, NodeSpec, OnExit

log = logging.getLogger("blockwright.runtime")
PROGRAM = "from blockwright.runtime.cluster.ray_driver import main; main()"
STOP = 20.0  # seconds that the driver may take to end its actors
DRIVER = "driver"  # its key
TELLING = 10.0  # seconds in which it has to tell the next head which actors it has
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
    """See the module. ``address``: of the Ray cluster; empty: the one of this machine. ``holder``: see ``Launcher``."""

    directory = ""

    def __init__(self, address: str, holder: OpenHolder) -> None:
        self._address = address
        self._held = HeldProcesses(holder, self._driver_ended, self._hear)
        self._workers: dict[str, _RayWorker] = {}  # by the name of their actor
        self._last_words: dict[PeerId, str] = {}
        self._refused = ""  # why the driver can do nothing
        self._opening = asyncio.Lock()
        self._told = asyncio.Event()  # the driver of an earlier head has said which actors it has
        self._over = asyncio.Event()  # there is no driver
        self._stopping = False

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._over.set()
        if DRIVER not in await self._held.find():
            return
        self._over.clear()
        self._say(do="tell")
        try:
            await asyncio.wait_for(self._told.wait(), TELLING)
        except TimeoutError:
            log.warning("the driver of Ray does not answer this head, and is ended with its workers")
            self._held.kill(DRIVER)
            await self._over.wait()

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen, keys)

    def joins(self, name: str) -> bool:
        return True

    async def spawn(self, spec: NodeSpec) -> int:
        async with self._opening:
            if self._stopping:
                raise LaunchError(f"node {spec.id} is not started: the launcher was stopped")
            if DRIVER not in self._held.pids:
                await self._open(spec.id)
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

    async def leave(self) -> None:
        self._stopping = True
        await self._held.leave()

    async def stop(self) -> None:
        self._stopping = True
        self._held.close(DRIVER)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), STOP)
        await self._held.stop()  # a driver that is left is killed, and Ray ends what it owned

    async def _open(self, node: PeerId) -> None:
        """Start the driver."""
        self._over.clear()
        self._refused = ""
        try:
            await self._held.start(DRIVER, [sys.executable, "-c", PROGRAM, self._address], tells=True)
        except LaunchError as error:
            self._over.set()
            raise LaunchError(f"node {node} could not be started: the driver of Ray cannot be run ({error})") from None

    def _say(self, **message: Any) -> None:
        self._held.say(DRIVER, json.dumps(message))

    def _driver_ended(self, end: HeldEnd) -> None:
        """Note the end of the driver, with which all that it has started is over."""
        self._over.set()
        self._told.set()
        log.log(logging.DEBUG if self._stopping else logging.WARNING, "the driver of Ray ended with %d", end.status)
        for actor in [*self._workers]:
            words = self._refused or f"the driver of Ray ended with {end.status}, and its workers with it"
            self._act({"event": "ended", "actor": actor, "status": KILLED, "words": words})

    def _hear(self, _: str, line: str) -> None:
        """Act on what the driver says."""
        said = json.loads(line)
        if said["event"] == "refused":
            self._refused = said["why"]
        elif said["event"] == "actors":
            self._take_over(said["actors"])
        else:
            self._act(said)

    def _take_over(self, actors: Mapping[str, int]) -> None:
        """Take over the actors of an earlier head; end the ones that it has only begun, as their texts were its own."""
        for actor, pid in actors.items():
            name, _, incarnation = actor.rpartition("-")
            future = asyncio.get_running_loop().create_future()
            self._workers[actor] = worker = _RayWorker(PeerId(name, int(incarnation)), future, pid)
            if pid:
                future.set_result(pid)
            else:
                future.cancel()
                self.kill(worker.id)
                self._on_exit(worker.id, KILLED)
        self._told.set()

    def _act(self, said: Mapping[str, Any]) -> None:
        worker = self._workers.get(said["actor"])
        if worker is None:  # of an earlier head
            if said["event"] == "ended":
                name, _, incarnation = said["actor"].rpartition("-")
                self._on_exit(PeerId(name, int(incarnation)), said["status"])
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
