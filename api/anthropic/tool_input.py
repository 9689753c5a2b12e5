"""The arguments of a tool call as they come: the beginning of them that is JSON.

A model may write what is no JSON, unless its calls are constrained, and an answer may end inside a call. Clients of
Anthropic's API get an object in any case: they read the pieces as JSON while these come. So what breaks the JSON is held
back, with all that follows it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 128  # levels; the readers of clients have limits, too
LONGEST_NUMBER = 400  # characters
_BLANKS = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^ \t\n\r,:{}\[\]\"]+")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_TEXT = re.compile(
    r'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*'
)
_BEGUN = re.compile(r"\\(u[0-9a-fA-F]{0,4}(\\(u[0-9a-fA-F]{0,3})?)?)?")  # what may become an escape
_ENDS = {"{": "}", "[": "]"}
_KEY, _COLON = "key", "colon"  # what may come
_VALUE = "value"
_NEXT, _DONE = "next", "done"


class ToolInput:
    """The state of one call's arguments. ``taken``: characters that are the beginning of JSON.

    ``mark``: characters up to the last complete member or element, behind which ``closing`` completes the object.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.mark = 0
        self.closing = ""
        self._buffer = ""
        self._open: list[str] = []  # signs that end what is open
        self._state = _VALUE
        self._in_text = False  # inside of a string
        self._empty = False  # nothing came behind an opening sign
        self._broken = False

    def feed(self, text: str) -> str:
        """Return the next part of the JSON that a text adds; empty if it is not certain yet, or broken."""
        self._buffer += text
        at = 0
        while not self._broken and at < len(self._buffer):
            end = self._text(at) if self._in_text else self._sign(at)
            if end == at:
                break  # broken, or more must come
            self.taken += end - at
            at = end
            self._note()
        made, self._buffer = self._buffer[:at], "" if self._broken else self._buffer[at:]
        return made

    def _note(self) -> None:
        if (not self._in_text and self._state in (_NEXT, _DONE)) or self._empty:
            self.mark, self.closing = self.taken, "".join(reversed(self._open))

    def _text(self, at: int) -> int:
        """Read on inside a string; return the position behind."""
        found = _TEXT.match(self._buffer, at)
        end = at if found is None else found.end()
        if end == len(self._buffer):
            return end
        if self._buffer[end] == '"':
            self._in_text = False
            self._state = _COLON if self._state == _KEY else _NEXT
            return end + 1
        self._broken = _BEGUN.fullmatch(self._buffer, end) is None
        return end

    def _sign(self, at: int) -> int:
        """Read one sign or scalar outside strings; return the position behind."""
        begin = _BLANKS.match(self._buffer, at).end()  # type: ignore[union-attr]
        if begin > at:
            return begin
        sign = self._buffer[at]
        if sign == '"':
            self._empty = False
            self._broken = self._state not in (_KEY, _VALUE) or not self._open
            self._in_text = not self._broken
        elif sign in _ENDS:
            self._broken = self._state != _VALUE or len(self._open) == DEEPEST or not (self._open or sign == "{")
            self._open.append(_ENDS[sign])
            self._state = _KEY if sign == "{" else _VALUE
            self._empty = True
        elif sign in "}]":
            self._close(sign)
        elif sign == ":" or sign == ",":
            self._separate(sign)
        else:
            return self._scalar(at)
        return at if self._broken else at + 1

    def _close(self, sign: str) -> None:
        if not self._open or self._open[-1] != sign or not (self._empty or self._state == _NEXT):
            self._broken = True
            return
        self._open.pop()
        self._empty = False
        self._state = _NEXT if self._open else _DONE

    def _separate(self, sign: str) -> None:
        if sign == ":" and self._state == _COLON:
            self._state = _VALUE
        elif sign == "," and self._state == _NEXT:
            self._state = _KEY if self._open[-1] == "}" else _VALUE
        else:
            self._broken = True

    def _scalar(self, at: int) -> int:
        """Read a number, true, false or null, which is complete when something follows it."""
        found = _SCALAR.match(self._buffer, at)
        end = at if found is None else found.end()
        word = self._buffer[at:end]
        if end == len(self._buffer) and len(word) <= LONGEST_NUMBER:
            return at
        valid = word in ("true", "false", "null") or (_is_number(word))
        if self._state != _VALUE or not self._open or not valid:
            self._broken = True
            return at
        self._empty = False
        self._state = _NEXT
        return end


def completed(text: str) -> dict[str, Any]:
    """Return the object whose beginning a text is, without its last member or element if that is incomplete."""
    read = ToolInput()
    beginning = read.feed(text)
    made: dict[str, Any] = json.loads(beginning[: read.mark] + read.closing) if read.mark else {}
    return made


def _is_number(word: str) -> bool:
    return len(word) <= LONGEST_NUMBER and _NUMBER.fullmatch(word) is not None and math.isfinite(float(word))
