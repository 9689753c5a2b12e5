"""The launcher of workers by a command, such as ``ssh {host} blockwright worker --join -`` or ``srun …``.

The command gets the join text of one life of a worker on its standard input, which stays open: when it closes, because the
head ends the worker or is gone itself, the worker ends. Owns the processes of the commands, each with a group of its own,
and passes on what they print; the last line of one that ended is its last words. What is left of the group is killed when
the command ends; who else holds its pipes does not matter. Chooses the host by
``policies/cluster/launching.py``; restarts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...policies.cluster.launching import HostChoice, LaunchTemplate
from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport
from ...transport.sockets import SocketTransport
from .launcher import Launcher, LaunchError, NodeSpec, OnExit

log = logging.getLogger("blockwright.runtime")
REST = 0.5  # seconds for the rest of what a command printed, once it has ended
LONGEST_WORDS = 300  # characters of the last words
LINE = 1 << 16  # bytes of a line that is passed on whole


@dataclass(slots=True, eq=False)
class _RunningCommand:
    """A command that runs."""

    process: asyncio.subprocess.Process
    standard_input: int  # our end of it
    output: asyncio.ReadTransport
    printed: asyncio.StreamReader
    host: str
    began: float  # on the loop's clock
    words: str = ""  # its last line

    def close(self) -> None:
        os.close(self.standard_input)
        self.output.close()


class CommandLauncher(Launcher):
    """See the module. ``hosts``: for the placeholder {host}, or none. Raises TemplateError."""

    directory = ""

    def __init__(self, template: LaunchTemplate, hosts: Sequence[str] = ()) -> None:
        template.check_hosts(hosts)
        self._template, self._hosts = template, HostChoice(hosts)
        self._runs: dict[PeerId, _RunningCommand] = {}
        self._last_words: dict[PeerId, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen, keys)

    def joins(self, name: str) -> bool:
        return True

    async def spawn(self, spec: NodeSpec) -> int:
        host = self._hosts.choose()
        try:
            run = await self._execute(spec, host)
        except BaseException:
            self._hosts.give_back(host, 0, 0.0)  # no fault of the host
            raise
        self._runs[spec.id] = run
        task = asyncio.get_running_loop().create_task(self._follow(spec.id, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run.process.pid

    def kill(self, node: PeerId) -> None:
        if (run := self._runs.get(node)) is not None:
            _kill_group(run.process.pid)

    def list(self) -> dict[PeerId, int]:
        return {node: run.process.pid for node, run in self._runs.items()}

    def last_words(self, node: PeerId) -> str:
        return self._last_words.pop(node, "")

    async def stop(self) -> None:
        for node in self.list():
            self.kill(node)
        await asyncio.gather(*self._tasks)

    async def _execute(self, spec: NodeSpec, host: str) -> _RunningCommand:
        """Run the command for one life of a worker, and give it the text."""
        needs, loop = spec.needs, asyncio.get_running_loop()
        known: dict[str, Any] = {"cores": needs.cores, "bytes": needs.bytes, "devices": needs.devices}
        command = self._template.fill({"host": host, "name": spec.name, **known})
        theirs, ours = os.pipe()
        reading, writing = os.pipe()
        printed = asyncio.StreamReader(LINE)
        output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(printed), io.FileIO(reading))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs,
                stdout=writing,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # signals to the head's group are the head's to answer
            )
        except BaseException as error:
            os.close(ours)
            output.close()
            if not isinstance(error, OSError):
                raise
            reason = error.strerror or str(error)
            raise LaunchError(
                f"node {spec.id} could not be started: {command[0]} cannot be run ({reason}); correct launch_command"
            ) from None
        finally:
            os.close(theirs)
            os.close(writing)
        with contextlib.suppress(BrokenPipeError):  # it has ended already, as will be said
            os.write(ours, f"{spec.join_text}\n".encode())
        return _RunningCommand(process, ours, output, printed, host, loop.time())

    async def _follow(self, node: PeerId, run: _RunningCommand) -> None:
        """Wait for the end of a command, and report it."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(_read(run))
        status = await run.process.wait()
        _kill_group(run.process.pid)  # what it left behind
        await asyncio.wait([reading], timeout=REST)
        reading.cancel()
        run.close()
        self._hosts.give_back(run.host, status, loop.time() - run.began)
        del self._runs[node]
        place = f" on {run.host}" if run.host else ""
        log.info("the command of worker %s%s ended with %d", node, place, status)
        if run.words:
            self._last_words[node] = run.words
        self._on_exit(node, status)


async def _read(run: _RunningCommand) -> None:
    """Pass on what a command prints, line by line, and keep the last one."""
    while True:
        try:
            line = await run.printed.readline()
        except ValueError:  # a line too long to be one of ours
            continue
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        if text:
            run.words = text[:LONGEST_WORDS]
            print(text, file=sys.stderr, flush=True)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
