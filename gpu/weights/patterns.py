"""Regular expressions from adapters' files, matched in bounded time: with ``re``, some would never end.

Python's own parser reads them. For each part of an expression and each place of the name, the set of places where a match
may end is computed once, whichever way leads there (Thompson, "Regular Expression Search Algorithm"). No library does this
with the expressions that trainers write (docs/decisions/texts.md). Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..errors import CheckpointError
from ..model.fields import shown

LONGEST = 512  # characters of an expression
_sre: Any = import_module("re._parser")
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda char: char.isalnum() or char == "_",
}
_PLAIN = re.compile(r"[\w.]+")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _Unknown(ValueError):
    """A part of an expression that is not supported."""


def matches(source: str, pattern: str, name: str, *, anywhere: bool = False) -> bool:
    """Return whether ``pattern`` matches the whole of ``name`` or, with ``anywhere``, its end after a dot.

    Raises CheckpointError, naming the file ``source``, for a text that is not an expression, is too long, or looks behind
    itself.
    """
    if anywhere and is_plain(pattern):
        return _ends_with(name, pattern)
    try:
        whole = rf"(.*\.)?({pattern})" if anywhere else pattern
        return len(name) in _Match(_parsed(whole), name).ends(0)
    except (re.error, OverflowError, RecursionError, _Unknown) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(
            f"{source}: {shown(pattern)} is not a supported regular expression ({reason}); correct it, or list the "
            "modules by name"
        ) from None


def is_plain(pattern: str) -> bool:
    """Return whether an expression is a name: letters, digits and dots, which stand for any character."""
    return _PLAIN.fullmatch(pattern) is not None


def _ends_with(name: str, plain: str) -> bool:
    """Return whether a plain expression matches the end of a name, after a dot or from its beginning."""
    begin = len(name) - len(plain)
    if begin < 0 or (begin > 0 and name[begin - 1] != ".") or "\n" in name:
        return False
    end = name[begin:]
    return end == plain or all(one in (".", other) for one, other in zip(plain, end, strict=True))


@lru_cache(1 << 12)
def _parsed(pattern: str) -> Any:
    if len(pattern) > LONGEST:
        raise _Unknown(f"it has {len(pattern)} characters, {LONGEST} are the most")
    re.compile(pattern)  # refuses what the parser alone lets through
    parsed = _sre.parse(pattern)
    if parsed.state.flags != re.UNICODE.value:
        raise _Unknown("flags are not")
    return parsed


class _Match:
    """One expression, or a part of it, on one name."""

    def __init__(self, items: Iterable[Any], name: str) -> None:
        self._items, self._name = tuple(items), name
        self._inner: dict[tuple[int, int], _Match] = {}
        self._known: dict[int, frozenset[int]] = {}

    def ends(self, start: int) -> frozenset[int]:
        """Return the places where a match that begins at ``start`` may end."""
        if start not in self._known:
            places = frozenset({start})
            for number, (code, argument) in enumerate(self._items):
                places = self._step(number, str(code), argument, places)
            self._known[start] = places
        return self._known[start]

    def _step(self, number: int, code: str, argument: Any, places: frozenset[int]) -> frozenset[int]:
        name = self._name
        if code in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return frozenset(i + 1 for i in places if i < len(name) and _takes(code, argument, name[i]))
        if code == "AT":
            return frozenset(i for i in places if self._is_at(str(argument), i))
        if code == "BRANCH":
            return self._each([self._part((number, i), branch) for i, branch in enumerate(argument[1])], places)
        if code == "SUBPATTERN" and not argument[1] and not argument[2]:
            return self._each([self._part((number, 0), argument[3])], places)
        if code in _REPEATS[:2]:
            return self._repeat(self._part((number, 0), argument[2]), argument[0], argument[1], places)
        if code in ("ASSERT", "ASSERT_NOT") and argument[0] == 1:
            ahead = self._part((number, 0), argument[1])
            return frozenset(i for i in places if bool(ahead.ends(i)) == (code == "ASSERT"))
        raise _Unknown(f"{code.lower().replace('_', ' ')} is not")

    def _is_at(self, anchor: str, place: int) -> bool:
        """Return whether an anchor such as ``^`` or ``\\b`` holds at a place of the name."""
        if not anchor.endswith("BOUNDARY"):
            return place == (0 if "BEGINNING" in anchor else len(self._name))
        sides = self._name[max(place - 1, 0) : place], self._name[place : place + 1]
        before, after = (any(map(_CATEGORIES["WORD"], side)) for side in sides)
        return (before != after) is ("NON" not in anchor)

    def _part(self, key: tuple[int, int], items: Iterable[Any]) -> _Match:
        if key not in self._inner:
            self._inner[key] = _Match(items, self._name)
        return self._inner[key]

    @staticmethod
    def _each(parts: list[_Match], places: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(part.ends(i) for part in parts for i in places))

    def _repeat(self, part: _Match, least: int, limit: Any, places: frozenset[int]) -> frozenset[int]:
        """Return the ends after a repeated part. After one round for each place of the name there are no new ones."""
        rounds = len(self._name) + 1
        for _ in range(min(least, rounds)):
            places = self._each([part], places)
        found, new = places, places
        for _ in range(min(int(limit) - least, rounds)):
            new = self._each([part], new) - found
            if not new:
                break
            found |= new
        return found


def _takes(code: str, argument: Any, char: str) -> bool:
    if code == "ANY":
        return char != "\n"
    if code == "IN":
        inside = any(_in_class(str(kind), value, char) for kind, value in argument)
        return inside != (str(argument[0][0]) == "NEGATE")
    return (ord(char) == int(argument)) == (code == "LITERAL")


def _in_class(kind: str, value: Any, char: str) -> bool:
    if kind == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        return _CATEGORIES[name.removeprefix("NOT_")](char) is not name.startswith("NOT_")
    if kind == "RANGE":
        low, high = value
        return bool(low <= ord(char) <= high)
    return kind == "LITERAL" and ord(char) == int(value)
