"""The expressions of a turn template: texts and a few parts around them, which are read in one pass.

An expression is a list of parts: a text, blanks, a run of characters of one class, or a gap up to the next text. Each part
ends where its own rule says, without a way back, so reading takes linear time whatever is written. An expression with other
parts is refused. Python's own parser takes expressions apart, as in ``gpu/weights/patterns.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

LONGEST, MOST_WAYS = 512, 16  # characters of an expression, texts that its alternatives make
LONGEST_RUN = 512  # characters of a run or gap
_sre: Any = import_module("re._parser")
_SHORT = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}
_SHORT |= {"CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_NOT_WORD": r"\W"}


class PatternError(ValueError):
    """An expression that is not supported; the text names the part."""


@dataclass(frozen=True, slots=True)
class Blanks:
    """Blanks that may be there. ``newline``: one new line at most."""

    newline: bool = False


@dataclass(frozen=True, slots=True)
class CharacterRun:
    """The longest run of characters of a class, at least one. ``name``: the group that it is. ``count``: exactly so long."""

    name: str
    chars: str  # as an expression for one character
    count: int = 0

    def fits(self, text: str) -> bool:
        """Return whether a text can be such a run."""
        return 0 < len(text) <= LONGEST_RUN and re.fullmatch(f"{self.chars}+", text) is not None


@dataclass(frozen=True, slots=True)
class Gap:
    """Any characters up to the next text. ``name``: the group that it is. ``writes``: texts that the grammar writes here."""

    name: str = ""
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Start:
    """The beginning of an answer."""


Part = str | Blanks | CharacterRun | Gap


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write an expression. ``start``: it stands at the beginning of an answer."""

    parts: tuple[Part, ...]
    start: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """The ways in which an expression may be written. ``ahead``: a text that must follow."""

    ways: tuple[Way, ...]
    ahead: str = ""


def read_pattern(text: str) -> Pattern:
    """Return the parts of an expression. Raise PatternError."""
    if len(text) > LONGEST:
        raise PatternError(f"has {len(text):,} characters; give at most {LONGEST}")
    try:
        parsed = _sre.parse(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"is no expression ({str(error)[:60]})") from None
    found, ahead = list(parsed), ""
    state = parsed.state
    reader = _Expression({number: name for name, number in state.groupdict.items()})
    if found and str(found[-1][0]) == "ASSERT" and found[-1][1][0] == 1:
        ways = [_joined(way) for way in reader.ways(found.pop()[1][1])]
        if len(ways) != 1 or len(ways[0]) != 1 or not isinstance(ways[0][0], str):
            raise PatternError("looks ahead for more than a text")
        ahead = ways[0][0]
    return Pattern(tuple(_checked(_joined(way)) for way in reader.ways(found)), ahead)


class _Expression:
    """The groups of one parsed expression, and the lists of parts that it stands for."""

    def __init__(self, groups: dict[int, str]) -> None:
        self._groups = groups

    def ways(self, items: Iterable[Any]) -> list[list[Any]]:
        made: list[list[Any]] = [[]]
        for op, given in items:
            found = self._one(str(op), given)
            made = [[*way, *more] for way in made for more in found]
            if len(made) > MOST_WAYS:
                raise PatternError(f"has more than {MOST_WAYS} ways to be written")
        return made

    def _one(self, op: str, given: Any) -> list[list[Any]]:
        if op == "LITERAL":
            return [[chr(given)]]
        if op == "AT" and str(given) == "AT_BEGINNING":
            return [[_Start()]]
        if op == "SUBPATTERN":
            return self._group(given)
        if op == "BRANCH":
            made = [way for one in given[1] for way in self.ways(one)]
            gaps = [way for way in made if len(way) == 1 and isinstance(way[0], Gap)]
            texts = ["".join(way) for way in made if all(isinstance(part, str) for part in way)]
            if len(gaps) == 1 and len(texts) == len(made) - 1:
                return [[Gap(gaps[0][0].name, tuple(texts))]]  # the gap may be written as one of these
            return made
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeated(op, *given)
        raise PatternError(f"has a part that is not supported ({op.lower()})")

    def _group(self, given: Any) -> list[list[Any]]:
        number, _, _, inner = given
        ways, name = self.ways(inner), self._groups.get(number, "")
        if not name:
            return ways
        if len(ways) != 1 or len(ways[0]) != 1 or not isinstance(ways[0][0], CharacterRun | Gap):
            raise PatternError(f"has the group {name!r} that is no run of characters")
        return [[replace(ways[0][0], name=name)]]

    def _repeated(self, op: str, least: int, most: Any, inner: Any) -> list[list[Any]]:
        many = str(most) == "MAXREPEAT"
        (kind, given), *more = inner
        single = not more and str(kind) in ("ANY", "LITERAL", "NOT_LITERAL", "IN", "CATEGORY")
        if (least, most) == (0, 1):
            if single and str(kind) == "LITERAL" and given == 10:
                return [[Blanks(newline=True)]]
            return [*self.ways(inner), []]
        if not single:
            raise PatternError("repeats more than single characters")
        if str(kind) == "ANY" and op == "MIN_REPEAT" and many and least == 0:
            return [[Gap()]]
        chars = _chars(str(kind), given)
        if many and op == "MAX_REPEAT" and chars == r"[\s]":
            return [[Blanks()]]
        if many and op == "MAX_REPEAT" and str(kind) != "ANY":
            return [[CharacterRun("", chars)], *([] if least else [[]])]
        if least == most and least <= LONGEST_RUN and str(kind) != "ANY":
            return [[CharacterRun("", chars, least)]]
        raise PatternError("has a repetition that is not supported")


def _chars(kind: str, given: Any) -> str:
    """Return the expression for one character of a class."""
    if kind == "ANY":
        return "."
    items = given if kind == "IN" else [("LITERAL" if kind == "NOT_LITERAL" else kind, given)]
    made = "^" if kind == "NOT_LITERAL" else ""
    for op, value in items:
        if str(op) == "NEGATE":
            made += "^"
        elif str(op) == "LITERAL":
            made += _escaped(value)
        elif str(op) == "RANGE":
            made += f"{_escaped(value[0])}-{_escaped(value[1])}"
        else:
            made += _SHORT[str(value)]
    return f"[{made}]"


def _escaped(code: int) -> str:
    """Return a character of a class as Python's and Rust's expressions both have it."""
    char = chr(code)
    return {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(char, "\\" + char if char in r"\]^-[&~|/" else char)


def _joined(way: Sequence[Any]) -> list[Any]:
    """Return the parts with neighbouring texts joined."""
    made: list[Any] = []
    for part in way:
        if isinstance(part, str) and made and isinstance(made[-1], str):
            made[-1] += part
        else:
            made.append(part)
    return made


def _checked(parts: list[Any]) -> Way:
    """Return the parts as a way. Raise PatternError where the end of a part is not plain to see."""
    start = bool(parts) and isinstance(parts[0], _Start)
    made: list[Part] = parts[1:] if start else parts
    if any(isinstance(part, _Start) for part in made):
        raise PatternError("has ^ behind other parts")
    for place, part in enumerate(made):
        end = next((one for one in made[place + 1 :] if not isinstance(one, Blanks)), None)
        if isinstance(part, Gap) and not isinstance(end, str):
            raise PatternError("has a .*? that no text ends")
        if not isinstance(part, CharacterRun) or part.count:
            continue
        end = next((one for one in made[place + 1 :] if isinstance(one, CharacterRun | str)), None)
        if isinstance(end, str) and re.match(part.chars, end):
            raise PatternError(f"has a run of characters among which {end[0]!r} is, which ends it")
        if isinstance(end, CharacterRun):
            raise PatternError("has a run of characters whose end is not plain to see")
    return Way(tuple(made), start)


class PatternReader:
    """The reading of one way, text by text. ``found``: the named groups. ``broken``: the text is no such expression."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._at = 0
        self._kept = ""
        self._length = 0  # of the run or gap
        self.found: dict[str, str] = {}
        self.broken = False

    @property
    def done(self) -> bool:
        """True if nothing is missing, although a last run may go on."""
        last = self._at == len(self._parts) - 1 and isinstance(self._parts[-1], CharacterRun)
        return self._at == len(self._parts) or (last and self._length > 0 and not self._kept)

    def feed(self, text: str) -> str | None:
        """Read on. Return what is left of the text behind the expression, or None if the expression goes on."""
        self._kept += text
        while self._at < len(self._parts) and not self.broken:
            if not self._step(self._parts[self._at]):
                return None
        left, self._kept = self._kept, ""
        return left

    def _step(self, part: Part) -> bool:
        """Read a part; return True if it has ended."""
        if isinstance(part, str):
            ended = self._kept.startswith(part)
            self.broken = not ended and not part.startswith(self._kept)
            self._kept = self._kept[len(part) :] if ended else self._kept
        elif isinstance(part, Blanks):
            rest = self._kept.removeprefix("\n") if part.newline else self._kept.lstrip()
            ended, self._kept = bool(self._kept) and (part.newline or bool(rest)), rest
        elif isinstance(part, CharacterRun):
            ended = self._run(part)
        else:
            ended = self._gap(part)
        if ended:
            self._at, self._length = self._at + 1, 0
        return ended or self.broken

    def _run(self, part: CharacterRun) -> bool:
        most = part.count - self._length if part.count else len(self._kept)
        match = re.compile(f"{part.chars}{{0,{most}}}").match(self._kept)
        text = match[0] if match else ""
        self._take(part.name, text)
        if part.count:
            ended = self._length == part.count
            self.broken = not ended and bool(self._kept)
            return ended
        self.broken = self.broken or (bool(self._kept) and not self._length)
        return bool(self._kept)

    def _gap(self, part: Gap) -> bool:
        ends = next(one for one in self._parts[self._at + 1 :] if isinstance(one, str))
        place = self._kept.find(ends)
        end = place if place >= 0 else begins(self._kept, ends)
        self._take(part.name, self._kept[:end])
        return place >= 0

    def _take(self, name: str, text: str) -> None:
        self._kept = self._kept[len(text) :]
        self._length += len(text)
        self.broken = self._length > LONGEST_RUN
        if name:
            self.found[name] = self.found.get(name, "") + text


def begins(text: str, one: str) -> int:
    """Return the place of the longest end of ``text`` that may become ``one``; its length, if there is none."""
    for at in range(max(0, len(text) - len(one) + 1), len(text)):
        if one.startswith(text[at:]):
            return at
    return len(text)
