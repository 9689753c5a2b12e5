"""The lifeline: a pipe of which the head alone holds the write end. The kernel kills a process that is tied to it as soon as
the head is gone, whatever ended the head, and also if the process hangs or is stopped.

So a node does not have to die with the forkserver that it was forked from. Uses no thread: the pipe sends SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = getattr(fcntl, "F_SETSIG", 10)  # Python 3.12 has the name; the number is the same on all Linux


class Lifeline:
    """The head's side of the pipe. ``end``: to be inherited by what is started, and to be given to ``tie``."""

    def __init__(self) -> None:
        self.end, self._held = os.pipe()

    def close(self) -> None:
        """Kill all that are tied to it. Idempotent."""
        for end in (self._held, self.end):
            if end >= 0:
                os.close(end)
        self._held = self.end = -1


def tie(end: int) -> None:
    """Have this process killed when the head is gone; exit at once if it is gone already. Raises OSError where the kernel
    cannot do so. The end is closed: signals of a pipe belong to an open file, and all processes inherit the same one."""
    own = os.open(f"/proc/self/fd/{end}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(end)
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    ready = select.poll()
    ready.register(own, 0)
    if ready.poll(0):  # hung up before the line above
        os._exit(1)
