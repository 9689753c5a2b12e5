"""The name of a process in ``ps``: what a node is, in place of the command line that its forkserver had.

The kernel shows the memory between ``arg_start`` and ``arg_end`` (proc(5)), which a process may write; where that cannot be
found nothing is changed. Never fails.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

_ARG_START, _ARG_END = 45, 46  # of /proc/self/stat, counted from behind the name: fields 48 and 49


def set_title(title: str) -> None:
    """Set the title; it may be cut to the length of the original command line."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            room = end - start
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
