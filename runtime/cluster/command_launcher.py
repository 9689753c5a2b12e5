"""The launcher of workers by a command, such as ``ssh {host} blockwright worker --join -`` or ``srun …``.

The command gets the join text of one life of a worker on its standard input, which stays open: when it closes the worker
ends. The holder has the other end (``holder.py``), so the worker outlives a head that others follow, and ends when the head
ends it or all end. Each command has a group of its own, and what it prints is passed on; the last line of one that ended is
its last words. Chooses the host by ``policies/cluster/launching.py``; restarts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ...policies.cluster.launching import CANNOT_RUN, HostChoice, LaunchTemplate
from ...transport.address import PeerId, parse_identity
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.sockets import SocketTransport
from .held import HeldEnd, HeldProcesses, OpenHolder, ProgramFailed
from .launcher import Launcher, LaunchError, NodeSpec, OnExit

log = logging.getLogger("blockwright.runtime")


class CommandLauncher(Launcher):
    """See the module. ``hosts``: for the placeholder {host}, or none. ``holder``: see ``Launcher``. Raises TemplateError."""

    directory = ""

    def __init__(self, template: LaunchTemplate, hosts: Sequence[str], holder: OpenHolder) -> None:
        template.check_hosts(hosts)
        self._template, self._hosts = template, HostChoice(hosts)
        self._held = HeldProcesses(holder, self._ended, lambda key, text: None)
        self._placed: dict[str, str] = {}  # hosts of what runs, by key
        self._last_words: dict[PeerId, str] = {}

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        for key, note in (await self._held.find()).items():
            self._placed[key] = self._hosts.take(note["host"])

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen, keys)

    def joins(self, name: str) -> bool:
        return True

    async def spawn(self, spec: NodeSpec) -> int:
        key, needs = str(spec.id), spec.needs
        self._placed[key] = host = self._hosts.choose()
        known: dict[str, Any] = {"cores": needs.cores, "bytes": needs.bytes, "devices": needs.devices}
        command = self._template.fill({"host": host, "name": spec.name, **known})
        try:
            return await self._held.start(key, command, spec.join_text, note={"host": host})
        except BaseException as error:
            self._give_back(key, 0, 0.0)  # no fault of the host
            if not isinstance(error, LaunchError):
                raise
            failed = isinstance(error, ProgramFailed)
            why = f"{command[0]} {CANNOT_RUN} ({error}); correct launch_command" if failed else str(error)
            raise LaunchError(f"node {spec.id} could not be started: {why}") from None

    def kill(self, node: PeerId) -> None:
        self._held.kill(str(node))

    def list(self) -> dict[PeerId, int]:
        return {parse_identity(key): pid for key, pid in self._held.pids.items()}

    def last_words(self, node: PeerId) -> str:
        return self._last_words.pop(node, "")

    async def leave(self) -> None:
        await self._held.leave()

    async def stop(self) -> None:
        await self._held.stop()

    def _ended(self, end: HeldEnd) -> None:
        node, host = parse_identity(end.key), end.note["host"]
        self._give_back(end.key, end.status, end.lived)
        log.info("the command of worker %s%s ended with %d", node, f" on {host}" if host else "", end.status)
        if end.words:
            self._last_words[node] = end.words
        self._on_exit(node, end.status)

    def _give_back(self, key: str, status: int, lived: float) -> None:
        if (host := self._placed.pop(key, None)) is not None:
            self._hosts.give_back(host, status, lived)
