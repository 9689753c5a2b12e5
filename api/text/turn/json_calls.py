"""The reader of tool calls that are JSON, piece by piece: names as soon as they are known, arguments as they are written.

Every character is looked at once. Only the structure is followed, so a fault inside the arguments is the client's to find.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from .call_forms import JsonForm

_STRUCTURE = re.compile(r'["{}\[\],:]')
_STRING_END = re.compile(r'["\\]')


@dataclass(slots=True)
class CallPiece:
    """An addition to a call. ``name`` comes with the first one."""

    index: int
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class JsonCalls:
    """The calls of one region. ``broken``: what is left of the last text, ``rest``, is no part of a call."""

    form: JsonForm
    first: int  # index of its first call in the turn
    count: int = 0  # calls whose names are known
    broken: bool = False
    rest: str = ""
    in_string: bool = False
    _complete: bool = False  # nothing may follow
    _escaped: bool = False
    _depth: int = 0
    _key: str = ""
    _in_value: bool = False
    _part: list[str] = field(default_factory=list)  # of the key or the value that is being read
    _name: str = ""
    _arguments: list[str] = field(default_factory=list)  # that came before the name
    _sent: bool = False  # arguments of this call were reported

    @property
    def inside(self) -> bool:
        """True if the last call is not complete."""
        return self._depth >= self._base

    @property
    def _base(self) -> int:
        return 2 if self.form.many else 1

    def feed(self, text: str) -> list[CallPiece]:
        """Return what a text adds."""
        made: list[CallPiece] = []
        at = before = 0
        while at < len(text) and not self.broken:
            before = at
            at = self._string(text, at, made) if self.in_string else self._outside(text, at, made)
        if self.broken:
            self.rest = text[before:]
        return made

    def close(self) -> list[CallPiece]:
        """Return what the end of the region adds."""
        return []

    def _string(self, text: str, at: int, made: list[CallPiece]) -> int:
        """Read on inside a string; return the position behind."""
        if self._escaped:
            self._escaped = False
            self._take(text[at], made)
            return at + 1
        found = _STRING_END.search(text, at)
        end = len(text) if found is None else found.end()
        self._take(text[at:end], made)
        if found is not None and found[0] == "\\":
            self._escaped = True
        elif found is not None:
            self.in_string = False
        return end

    def _outside(self, text: str, at: int, made: list[CallPiece]) -> int:
        """Read on outside strings, up to the next sign of the structure."""
        found = _STRUCTURE.search(text, at)
        if found is None:
            self._blank(text[at:], made)
            return len(text)
        self._blank(text[at : found.start()], made)
        sign = found[0]
        if sign == '"':
            self.in_string = True
            self._take(sign, made)
        elif sign in "{[":
            self._open(sign, made)
        elif sign in "}]":
            self._close(sign, made)
        elif self._depth == self._base and sign == ":" and not self._in_value:
            self._begin_value()
        elif self._depth == self._base and sign == ",":
            self._end_value(made)
        elif self._depth > self._base:
            self._take(sign, made)
        elif sign == ":" or not self.form.many:
            self.broken = True
        return found.end()

    def _open(self, sign: str, made: list[CallPiece]) -> None:
        self._depth += 1
        if self._depth > self._base:
            self._take(sign, made)
        elif self._complete or sign != ("[" if self._depth < self._base else "{"):
            self.broken = True

    def _close(self, sign: str, made: list[CallPiece]) -> None:
        self._depth -= 1
        if self._depth >= self._base:
            self._take(sign, made)
        elif self._depth == self._base - 1 and sign == "}":
            self._end_value(made)
            self._end_call(made)
            self._complete = not self.form.many
        else:
            self._complete = True
            self.broken = self._depth != 0

    def _blank(self, text: str, made: list[CallPiece]) -> None:
        if self._in_value:
            self._take(text, made)
        elif text.strip():
            self.broken = True

    def _take(self, text: str, made: list[CallPiece]) -> None:
        """Take a part of a key or value."""
        if self._depth < self._base:
            self.broken = True
        elif self._in_value and self._key == self.form.arguments and self._streams(text):
            self._report(text, made)
        elif self._part or text.strip():
            self._part.append(text)

    def _streams(self, text: str) -> bool:
        """Return True if the arguments are an object, which is passed on as it comes; its end is where its depth ends."""
        self._sent = self._sent or (not self._part and text.startswith("{"))
        return self._sent

    def _report(self, text: str, made: list[CallPiece]) -> None:
        if self._depth == self._base and not text.endswith("}"):
            return  # blanks behind the object
        if not self._name:
            self._arguments.append(text)
        elif made and made[-1].index == self.first + self.count - 1:
            made[-1].arguments += text
        else:
            made.append(CallPiece(self.first + self.count - 1, arguments=text))

    def _begin_value(self) -> None:
        try:
            key = json.loads("".join(self._part))
        except ValueError:
            key = None
        self._part.clear()
        self._key, self._in_value = key if isinstance(key, str) else "", True
        self.broken = not isinstance(key, str)

    def _end_value(self, made: list[CallPiece]) -> None:
        """Read a value that has ended."""
        text, self._part = "".join(self._part).strip(), []
        if not self._in_value:
            self.broken = bool(text)
            return
        self._in_value = False
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = None
        if self._key == self.form.name and not self._name:
            if not isinstance(value, str) or not value:
                self.broken = self.count == 0
                return
            self._name = value
            self.count += 1
            made.append(CallPiece(self.first + self.count - 1, name=value, arguments="".join(self._arguments)))
        elif self._key == self.form.arguments and not self._sent:
            self._sent = True
            self._report(value if isinstance(value, str) and value.startswith("{") else "{}", made)

    def _end_call(self, made: list[CallPiece]) -> None:
        if not self._name:
            self.broken = True
        elif not self._sent:
            self._report("{}", made)
        self._name = self._key = ""
        self._arguments = []
        self._sent = False
