"""Watches of processes, which notice that a worker's process has died, by pidfd.

The kernel reports the end whatever the parent is, and a signal never reaches another process that has got the same number.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def can_watch() -> bool:
    """Return whether the kernel has pidfds."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def begun_at(pid: int) -> int:
    """Return when a process began, in ticks since the machine did; 0 if there is none. With its number this names it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


class ProcessWatch:
    """A process of that number and beginning. Raises ProcessLookupError if it is gone."""

    def __init__(self, pid: int, begun: int) -> None:
        self._fd = os.pidfd_open(pid)
        self._loop: asyncio.AbstractEventLoop | None = None
        if begun_at(pid) != begun:
            self.close()
            raise ProcessLookupError(f"process {pid} is another one now")

    def on_end(self, call: Callable[[], None]) -> None:
        """Have ``call`` made when it ends; soon if it has."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, call)

    def kill(self) -> None:
        """SIGKILL it. Nothing if it has ended."""
        try:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """Forget it. Idempotent."""
        if self._fd < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
