"""A holder as a process of its own, as the forkserver forks it, but loaded by its path: it needs no library but Python's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from blockwright.runtime.cluster import holder
from blockwright.runtime.cluster.held import HeldProcesses
from blockwright.runtime.cluster.launcher import Launcher
from blockwright.runtime.cluster.lifeline import Lifeline

PROGRAM = """
import socket, sys
path, listener, lifeline = sys.argv[1:]
made = type(sys)("loaded")
sys.modules["loaded"] = made
exec(compile(open(path).read(), path, "exec"), made.__dict__)
assert not any(name.startswith(("blockwright", "zmq")) for name in sys.modules)
made.Holder(socket.socket(fileno=int(listener)), int(lifeline)).run()
"""


class HolderProcess:
    """A holder that is started when it is first asked for, and again after its end."""

    def __init__(self) -> None:
        self._address = f"\0blockwright-test-{os.getpid()}-{os.urandom(8).hex()}"
        self._lifeline = Lifeline()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.users: list[Launcher | HeldProcesses] = []  # that are stopped with it

    async def holder(self, *, fork: bool) -> socket.socket | None:
        """Do what ``Launcher.holder`` does."""
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(self._address)
        except OSError:
            end.close()
            if not fork:
                return None
        else:
            return end
        self._fork()
        return await self.holder(fork=False)

    def _fork(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen()
            ends = listener.fileno(), self._lifeline.end
            command = [sys.executable, "-c", PROGRAM, str(Path(holder.__file__)), *map(str, ends)]
            self.processes.append(subprocess.Popen(command, pass_fds=ends))

    def cut(self) -> None:
        """End who it serves for."""
        self._lifeline.close()

    async def close(self) -> None:
        """End it, and what it holds."""
        for user in self.users:
            await user.stop()
        self.cut()
        for process in self.processes:
            process.kill()
            process.wait()
