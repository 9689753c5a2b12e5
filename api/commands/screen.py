"""A refreshing screen: a fixed head, and below it a list that scrolls and can be filtered by keys.

It owns the layout, the keys, and the terminal's mode while the keyboard is open. ``observe.py`` makes the values and
``tables.py`` the tables. If the server is away, for example during a restart, the screen says so; the last values stay until
it answers again.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment

from ..program.results import RequestError
from .output import console_of, print_json

Line = list[Segment]
View = Mapping[str, Any]
_LEAST = 4  # least lines of the list that are shown, however long the head is
_ENDS = ("q", "Q", "end of input")
_AWAY = (0, 500, 502, 503, 504)  # status of an answer (0: no answer) if the server is away or still starting
ESCAPE = b"\x1b"
_MOVES = {"A": "up", "B": "down", "H": "home", "F": "end", "1~": "home", "7~": "home", "4~": "end", "8~": "end"}
_MOVES |= {"5~": "page up", "6~": "page down"}
_PLAIN = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "end of input"}
_REST_SECONDS = 0.05  # seconds within which the rest of a key's sequence follows its first byte


@dataclass(frozen=True, slots=True)
class Screenful:
    """The content of a screen.

    ``head``: the fixed part. ``body``: a list whose first line has the column names. ``short``: the same list in fewer
    lines, for a screen that is too small.
    """

    head: RenderableType
    body: RenderableType
    short: RenderableType | None = None

    def fitted(self, console: Console) -> Group:
        """Return everything, in the short form if the terminal has too few lines for the long one."""
        if self.short is not None and console.is_terminal:
            lines = len(_lines(console, self.head)) + len(_lines(console, self.body))
            if lines > console.height - 2:  # the line of the command, and the next prompt
                return Group(self.head, self.short)
        return Group(self.head, self.body)


class Scroll:
    """The visible part of a list, moved and filtered by keys. Pure."""

    def __init__(self) -> None:
        self.first = 0
        self.needle = ""
        self.typing = False
        self._page = 1

    def press(self, key: str) -> bool:
        """Apply a key; return True if it ends the screen."""
        if key == "escape":
            self.needle = ""
            self.typing = False
            self.first = 0
        elif key in ("up", "down", "page up", "page down", "home", "end"):
            self._move(key)
        elif key == "enter":
            self.typing = False
        elif self.typing and key != "end of input":
            self.needle = (
                self.needle[:-1] if key == "backspace" else self.needle + key * (len(key) == 1 and key.isprintable())
            )
            self.first = 0
        elif key == "/":
            self.typing = True
        return (not self.typing and key in _ENDS) or key == "end of input"

    def _move(self, key: str) -> None:
        steps = {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}
        self.first = {"home": 0, "end": 1 << 30}.get(key, self.first + steps.get(key, 0))

    def window(self, texts: list[str], room: int) -> tuple[list[int], str]:
        """Return the places of the lines to show within ``room`` lines, and the text below them."""
        found = [place for place, text in enumerate(texts) if self.needle.lower() in text.lower()]
        said = ""
        if self.typing or self.needle:
            cursor = "_" if self.typing else ""
            said = f"filter: {self.needle}{cursor} ({len(found)} of {len(texts)} lines; Esc clears)"
        if len(found) > room - bool(said):
            room -= 1
        self._page = max(1, room)
        self.first = max(0, min(self.first, len(found) - room))
        shown = found[self.first : self.first + max(room, 0)]
        below = len(found) - self.first - len(shown)
        if below or self.first:
            more = f"and {below} more" if not self.first else f"{self.first} above, {below} below"
            said = f"{more}; {said or 'arrows scroll, / filters'}"
        return shown, said


class _Lines:
    """Rendered lines."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, line in enumerate(self._lines):
            if number:
                yield Segment.line()
            yield from line


def _lines(console: Console, shown: RenderableType) -> list[Line]:
    return console.render_lines(shown, console.options, pad=False)


def _plain(line: Line) -> str:
    return "".join(segment.text for segment in line)


def screen(console: Console, title: RenderableType, listing: Screenful, scroll: Scroll) -> RenderableType:
    """Return a screen: the title, the head, and the part of the list that fits."""
    top = _lines(console, Group(title, "", listing.head))
    body = _lines(console, listing.body)
    height = console.height
    if listing.short is not None and not (scroll.needle or scroll.typing) and len(top) + len(body) > height:
        body = _lines(console, listing.short)
    limit = max(1, height - 1 - _LEAST)
    if len(top) > limit:  # the rest of the head scrolls with the list
        top, rows = top[:limit], top[limit:] + body
    else:
        top, rows = top + body[:1], body[1:]
    shown, said = scroll.window([_plain(line) for line in rows], height - len(top))
    return _Lines(top + [rows[place] for place in shown] + ([[Segment(said)]] if said else []))


def show(
    view: Callable[[], View], render: Callable[[View], Screenful], *, of: str, once: bool, as_json: bool, interval: float
) -> int:
    """Print the result of ``view``: as JSON, once as a table, or on a terminal again every ``interval`` seconds.

    ``of``: name of the source, shown above.
    """
    if as_json:
        print_json(view())
        return 0
    console = console_of(200)
    if once or not sys.stdout.isatty():
        console.print(render(view()).fitted(console))
        return 0
    looks, scroll = _Looks(view, of, interval), Scroll()
    listing = render(looks.now())

    def painted() -> RenderableType:
        return screen(console, looks.title, listing, scroll)

    with Keyboard() as keyboard, Live(painted(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            until = time.monotonic() + interval
            left = interval
            while left > 0:
                pressed = keyboard.pressed_within(left)
                if any(scroll.press(key) for key in pressed):
                    return 0
                if not pressed:
                    break
                live.update(painted(), refresh=True)
                left = until - time.monotonic()
            listing = render(looks.now())
            live.update(painted(), refresh=True)


class _Looks:
    """Samples of a server that may go away. ``title``: the time of the sample, or since when the server is away."""

    def __init__(self, view: Callable[[], View], of: str, interval: float) -> None:
        self._view = view
        self._of = of
        self._interval = interval
        self._last: View | None = None
        self._away = ""  # time of the first failure
        self.title = ""

    def now(self) -> View:
        """Return a sample, or the last one if the server is away.

        Raise RequestError for any other refusal, and if the server has never answered.
        """
        at = time.strftime("%H:%M:%S")
        try:
            self._last = self._view()
        except RequestError as error:
            if self._last is None or error.status not in _AWAY:
                raise
            self._away = self._away or at
            why = error.message.partition(";")[0]
            self.title = f"{self._of} is away since {self._away}: {why}. Below is what was seen last; q quits"
            return self._last
        self._away = ""
        self.title = f"{self._of}, {at}, every {self._interval:g} s; q quits"
        return self._last


class Keyboard:
    """A keyboard whose keys arrive one by one, by name. Ctrl-C interrupts as everywhere.

    Use as ``with``. ``source``: standard input by default. Without a readable terminal it only waits.
    """

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
