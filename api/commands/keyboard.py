"""The keyboard beside a screen that is refreshed: q ends it. Ctrl-C interrupts as everywhere.

Owns the mode of the terminal while it is open; where nobody can type, it only waits.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from typing import Any, Self, TextIO

END = b"qQ"


class Keyboard:
    """Use as ``with``. ``source``: standard input by default."""

    def __init__(self, source: TextIO | None = None) -> None:
        found: TextIO | None = source or sys.stdin  # none where it is closed
        self._file = found.fileno() if found is not None and found.isatty() and _in_front(found.fileno()) else None
        self._mode: list[Any] = []

    def __enter__(self) -> Self:
        if self._file is not None:
            self._mode = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)  # keys come one by one, and are not shown
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._mode)

    def ended_within(self, seconds: float) -> bool:
        """True as soon as q is pressed or nobody can type any more, False once the time is over."""
        if self._file is None:
            time.sleep(seconds)
            return False
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._file], [], [], left)[0]:
                keys = os.read(self._file, 64)
                if not keys or set(END) & set(keys):
                    return True
        return False


def _in_front(file: int) -> bool:
    """A job in the background is stopped when it changes the terminal's mode."""
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:  # no job control there
        return True
