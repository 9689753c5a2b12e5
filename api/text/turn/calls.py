"""The readers of the calls of one region, by the form in which they are written.

Each has ``feed``, ``close`` for the end of the region, ``count`` of the calls whose names are known, ``inside`` while the
last call is not complete, and ``broken`` with ``rest``: what is left of the last text, which is no part of a call.
"""

from __future__ import annotations

import re
from collections.abc import Container

from .arguments import JsonArguments, TagArguments
from .call_forms import NAME, CallForm, JsonForm, NamedForm, PythonForm, TagForm
from .json_calls import CallPiece, JsonCalls
from .literals import Dialect, LiteralArguments
from .patterns import LONGEST_RUN, PatternReader
from .schema_types import ToolTypes

PYTHON = Dialect(python=True)
_PYTHON_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")
_Arguments = JsonArguments | TagArguments | LiteralArguments


class NamedCall:
    """A call whose name stands before its arguments."""

    def __init__(self, form: NamedForm | TagForm, first: int, types: ToolTypes) -> None:
        self._form, self._types = form, types
        self._first = first
        self._head = PatternReader(form.head)
        self._arguments: _Arguments | None = None
        self.count = 0
        self.broken = False
        self.rest = ""

    @property
    def in_string(self) -> bool:
        """True where the end of the region would be a part of an argument."""
        return self._arguments is not None and self._arguments.in_string

    @property
    def inside(self) -> bool:
        """True if the call is not complete."""
        return self._arguments is None or not self._arguments.done

    def feed(self, text: str) -> list[CallPiece]:
        """Return what a text adds."""
        if self._arguments is None:
            left = self._head.feed(text)
            if left is None:
                return []
            if self._head.broken or not self._name:
                self.broken, self.rest = True, left
                return []
            text = left
            self._arguments = self._reader()
        made, left = ("", text) if self._arguments.done else self._arguments.feed(text)
        if self._arguments.broken or (self._arguments.done and left.strip()):
            self.broken, self.rest = True, left
        return self._pieces(self._arguments, made)

    def close(self) -> list[CallPiece]:
        """Return what the end of the region adds."""
        if self.broken:
            return []
        if self._arguments is None and self._head.done and self._name:
            self._arguments = self._reader()
        return [] if self._arguments is None else self._pieces(self._arguments, self._arguments.close())

    def _pieces(self, arguments: _Arguments, made: str) -> list[CallPiece]:
        if not self.count and arguments.begun and not arguments.broken:
            self.count = 1
            return [CallPiece(self._first, self._name, made)]
        return [CallPiece(self._first, arguments=made)] if made else []

    @property
    def _name(self) -> str:
        return self._head.found.get(NAME, "").strip()

    def _reader(self) -> _Arguments:
        if isinstance(self._form, TagForm):
            return TagArguments(self._form, self._name, self._types)
        if self._form.is_json:
            return JsonArguments()
        return LiteralArguments(Dialect(self._form.strings))


class PythonCalls:
    """Calls that are Python's. ``names``: the ones that the first call may have, if nothing but it says that it is one."""

    def __init__(self, form: PythonForm, first: int, names: Container[str] | None = None) -> None:
        self._first, self._listed = first, form.listed
        self._names = names
        self._kept = ""
        self._arguments: LiteralArguments | None = None
        self._opened = False  # the list
        self._ended = False
        self.count = 0
        self.broken = False
        self.rest = ""

    @property
    def in_string(self) -> bool:
        """True where the end of the region would be a part of an argument."""
        return self._arguments is not None and self._arguments.in_string

    @property
    def inside(self) -> bool:
        """True if the last call is not complete."""
        return self._arguments is not None

    def feed(self, text: str) -> list[CallPiece]:
        """Return what a text adds."""
        made: list[CallPiece] = []
        self._kept += text
        while self._kept and not self.broken and self._step(made):
            pass
        if self.broken:
            self.rest, self._kept = self._kept, ""
        return made

    def close(self) -> list[CallPiece]:
        """Return what the end of the region adds."""
        return []

    def _step(self, made: list[CallPiece]) -> bool:
        if self._arguments is not None:
            text, self._kept = self._arguments.feed(self._kept)
            if text:
                made.append(CallPiece(self._first + self.count - 1, arguments=text))
            if self._arguments.done:
                self._arguments = None
            return True
        self._kept = self._kept.lstrip(" \n\t\r," if self.count and not self._ended else " \n\t\r")
        if not self._kept:
            return False
        if self._listed and not self._ended and self._kept[0] == ("]" if self._opened else "["):
            self._ended, self._opened = self._opened, True
            self._kept = self._kept[1:]
            return True
        found = _PYTHON_NAME.match(self._kept)
        if found is None or found.end() > LONGEST_RUN or self._ended or (self._listed and not self._opened):
            self.broken = True
            return False
        if found.end() == len(self._kept):
            return False  # the name may go on
        known = self._names is None or self.count > 0 or found[0] in self._names
        self.broken = self._kept[found.end()] != "(" or not known
        if not self.broken:
            self.count += 1
            made.append(CallPiece(self._first + self.count - 1, found[0]))
            self._kept = self._kept[found.end() :]
            self._arguments = LiteralArguments(PYTHON, "(")
        return not self.broken


Calls = JsonCalls | NamedCall | PythonCalls


def calls_of(form: CallForm, first: int, types: ToolTypes, *, marked: bool = True) -> Calls:
    """Return the reader of a region's calls. ``first``: the index of its first call in the turn.

    ``marked``: a text that is no part of the calls has opened the region. Without one, ``[see(a)]`` may be any text.
    """
    if isinstance(form, JsonForm):
        return JsonCalls(form, first)
    if isinstance(form, PythonForm):
        return PythonCalls(form, first, None if marked else types.names)
    return NamedCall(form, first, types)
