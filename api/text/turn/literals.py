"""The reader of literals that are almost JSON: Python's, and JSON with bare keys or other texts around strings.

What is read is given back as JSON, piece by piece. Each character is looked at a bounded number of times. A word that is no
literal is a string, so that nothing is lost.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field

from .patterns import begins

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSES = {"{": "}", "[": "]", "(": ")"}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|[^xuU0-7])", re.DOTALL)
_LONGEST_ESCAPE = 10
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
LONGEST_NUMBER = 300  # characters of a number that is not written as in JSON


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write literals.

    ``strings``: the pairs of texts around strings in which a backslash is a character like others. ``python``: strings have
    Python's escapes, else JSON's.
    """

    strings: tuple[tuple[str, str], ...] = ()
    python: bool = False

    @property
    def quotes(self) -> tuple[tuple[str, str], ...]:
        """The pairs of texts around strings that have escapes."""
        return (('"', '"'), ("'", "'")) if self.python else (('"', '"'),)


@dataclass(slots=True)
class LiteralArguments:
    """Arguments that are one object, or arguments by name in round brackets.

    ``begun``: the first bracket was read. ``done``: the last one. ``broken``: there is no such bracket.
    """

    dialect: Dialect
    opening: str = "{"  # the first bracket
    begun: bool = False
    done: bool = False
    broken: bool = False
    _kept: str = ""
    _open: list[str] = field(default_factory=list)  # the brackets that will close
    _word: list[str] = field(default_factory=list)
    _ends: str = ""  # the text that ends the string
    _raw: bool = False  # a backslash in it is a character
    _value: bool = False  # a value has ended, so a comma is missing before the next
    _places: re.Pattern[str] | None = None

    @property
    def in_string(self) -> bool:
        return bool(self._ends)

    def feed(self, text: str) -> tuple[str, str]:
        """Return the JSON that a text adds, and what is left of it behind the arguments."""
        made: list[str] = []
        self._kept += text
        while not self.done and not self.broken and self._kept and self._step(made):
            pass
        if not self.done and not self.broken:
            return "".join(made), ""
        left, self._kept = self._kept, ""
        return "".join(made), left

    def close(self) -> str:
        """Return what the end of the call adds."""
        return ""

    def _step(self, made: list[str]) -> bool:
        if self._ends:
            return self._string(made)
        if not self.begun:
            self._kept = self._kept.lstrip()
            self.begun, self.broken = self._kept.startswith(self.opening), not self.opening.startswith(self._kept[:1])
            if not self.begun:
                return False
        return self._outside(made)

    def _outside(self, made: list[str]) -> bool:
        """Read on outside of strings, up to the next sign or string; return False if it has not come."""
        openings = [*self.dialect.strings, *self.dialect.quotes]
        if self._places is None:
            signs = "|".join(re.escape(one) for one, _ in openings)
            self._places = re.compile(rf"[\[\](){{}},:=]|{signs}")
        found = self._places.search(self._kept)
        if found is None:
            end = min(begins(self._kept, one) for one, _ in openings)
            self._word.append(self._kept[:end])
            self._kept = self._kept[end:]
            return False
        if any(begins(self._kept, one) <= found.start() for one, _ in openings if len(one) > len(found[0])):
            return False  # a longer text may be coming
        self._word.append(self._kept[: found.start()])
        self._kept = self._kept[found.end() :]
        closing = dict(openings).get(found[0])
        if closing is None:
            self._sign(found[0], made)
        else:
            self._word.clear()
            self._begin(made)
            made.append('"')
            self._ends, self._raw = closing, (found[0], closing) in self.dialect.strings
        return True

    def _sign(self, sign: str, made: list[str]) -> None:
        word = "".join(self._word).strip()
        self._word.clear()
        if sign in ":=" and (not word or sign == ":" or self._open[-1:] == [")"]):
            if word:
                self._begin(made)
                made.append(json.dumps(word, ensure_ascii=False))
            made.append(": ")
            self._value = False
            return
        if sign == "=":
            self._word += [word, sign]
            return
        if word:
            self._begin(made)
            made.append(_json(word))
            self._value = True
        if sign == ",":
            return
        if sign in _CLOSES:
            self._begin(made)
            self._open.append(_CLOSES[sign])
            made.append("{" if sign == "{" or len(self._open) == 1 else "[")
            self._value = False
            return
        self._value = True
        opened = self._open.pop() if self._open else ""
        self.done = not self._open
        made.append("}" if opened == "}" or self.done else "]")

    def _begin(self, made: list[str]) -> None:
        """Write the comma before a value or key."""
        if self._value:
            made.append(", ")
        self._value = False

    def _string(self, made: list[str]) -> bool:
        """Read on in a string; return False if more of it must come."""
        end = self._kept.find(self._ends)
        if self._raw:
            inner = self._kept[: end if end >= 0 else begins(self._kept, self._ends)]
            made.append(_inside(inner))
            self._kept = self._kept[len(inner) :]
        else:
            slash = self._kept.find("\\")
            if slash >= 0 and not 0 <= end < slash:
                made.append(_inside(self._kept[:slash]))
                self._kept = self._kept[slash:]
                return self._escape(made)
            inner = self._kept[: end if end >= 0 else len(self._kept)]
            made.append(_inside(inner))
            self._kept = self._kept[len(inner) :]
        if end < 0:
            return False
        self._kept = self._kept[len(self._ends) :]
        made.append('"')
        self._ends, self._value = "", True
        return True

    def _escape(self, made: list[str]) -> bool:
        found = _ESCAPE.match(self._kept)
        octal = found is not None and found[0][1:].isdigit() and found.end() == len(self._kept) < 4
        if (found is None and len(self._kept) >= _LONGEST_ESCAPE) or (found is None and not _may_be_escape(self._kept)):
            made.append(_inside("\\"))
            self._kept = self._kept[1:]
            return True
        if found is None or octal:
            return False
        made.append(_unescaped(found[0], python=self.dialect.python))
        self._kept = self._kept[found.end() :]
        return True


def _may_be_escape(text: str) -> bool:
    """Return whether a text may be the beginning of an escape."""
    lengths = {"x": 2, "u": 4, "U": 8}
    if len(text) < 2:
        return True
    return len(text) - 2 < lengths.get(text[1], 0) and all(char in "0123456789abcdefABCDEF" for char in text[2:])


def _unescaped(text: str, *, python: bool) -> str:
    """Return the JSON of an escape."""
    sign = text[1]
    if sign in "xuU" or sign.isdigit():
        code = int(text[2:], 16) if sign in "xuU" else int(text[1:], 8)
        if 0xD800 <= code < 0xE000:
            return f"\\u{code:04x}"  # half of a character, which JSON can have
        return _inside(chr(code)) if code < 0x110000 else _inside(text)
    if sign in "\\'\"" or (sign == "/" and not python):
        return _inside(sign)
    return _inside(_SHORT[sign]) if sign in _SHORT else _inside(text)


def _inside(text: str) -> str:
    """Return a text as it stands in a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json(word: str) -> str:
    """Return the JSON of a word outside of strings."""
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    if len(word) <= LONGEST_NUMBER and word[-1].isalnum() | (word[-1] in "._"):
        for read in (lambda text: int(text, 0), float):
            try:
                value = read(word)
            except (ValueError, OverflowError):
                continue
            if math.isfinite(value):
                return json.dumps(value)
    return json.dumps(word, ensure_ascii=False)
