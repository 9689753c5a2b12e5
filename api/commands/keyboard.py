"""The keyboard of a refreshing screen: keys arrive one by one, by name. Ctrl-C interrupts as everywhere.

It owns the terminal's mode while it is open. Without a readable terminal it only waits.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any, Self, TextIO

ESCAPE = b"\x1b"
_MOVES = {"A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "7~": "home", "4~": "end", "8~": "end"}
_MOVES |= {"5~": "page up", "6~": "page down"}
_PLAIN = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "end of input"}
_REST_SECONDS = 0.05  # seconds within which the rest of a key's sequence follows its first byte


class Keyboard:
    """The keyboard. Use as ``with``. ``source``: standard input by default."""

    def __init__(self, source: TextIO | None = None) -> None:
        found: TextIO | None = source or sys.stdin  # None if it is closed
        self._file = found.fileno() if found is not None and found.isatty() and _in_front(found.fileno()) else None
        self._mode: list[Any] = []

    def __enter__(self) -> Self:
        if self._file is not None:
            self._mode = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)  # keys come one by one, and are not echoed
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._mode)

    def pressed_within(self, seconds: float) -> list[str]:
        """Return the next pressed keys, or none after ``seconds``.

        Characters are returned as they are, other keys by name; "end of input" means that the terminal is gone.
        """
        if self._file is None:
            time.sleep(seconds)
            return []
        if not select.select([self._file], [], [], max(seconds, 0.0))[0]:
            return []
        try:
            typed = os.read(self._file, 64)
        except OSError:  # the other end of the terminal is closed
            typed = b""
        if not typed:
            return ["end of input"]
        if typed.endswith((ESCAPE, ESCAPE + b"[", ESCAPE + b"O")) and select.select([self._file], [], [], _REST_SECONDS)[0]:
            typed += os.read(self._file, 64)
        return list(keys(typed.decode(errors="ignore")))


def keys(typed: str) -> Iterator[str]:
    """Yield the keys that a terminal sent; sequences of unknown keys are dropped."""
    at = 0
    while at < len(typed):
        if typed[at] != "\x1b":
            yield _PLAIN.get(typed[at], typed[at])
            at += 1
        elif typed[at + 1 : at + 2] not in ("[", "O"):
            yield "escape"
            at += 1
        else:
            end = at + 2
            while end < len(typed) and not (typed[end].isalpha() or typed[end] == "~"):
                end += 1
            if (name := _MOVES.get(typed[at + 2 : end + 1])) is not None:
                yield name
            at = end + 1


def _in_front(file: int) -> bool:
    """Return True if this job owns the terminal: a background job is stopped when it changes the terminal's mode."""
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:  # no job control
        return True
