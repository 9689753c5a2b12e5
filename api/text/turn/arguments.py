"""The readers of the arguments of one call, piece by piece: as JSON, or as texts between tags."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from .call_forms import ALL, LINE, TagForm
from .patterns import PatternReader, begins
from .schema_types import EVERY, STRING, ToolTypes, type_of

_INSIDE = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]')
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}  # between tags, read as JSON's


@dataclass(slots=True)
class JsonStrings:
    """The strings of JSON: which places are inside of one."""

    inside: bool = False
    _escaped: bool = False

    def skip(self, text: str, at: int) -> int:
        """Return the place behind what is left of a string in a text; its length, if the string goes on."""
        while self.inside and at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _INSIDE.search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._escaped = found[0] == "\\"
            self.inside = self._escaped
        return at


@dataclass(slots=True)
class JsonArguments:
    """Arguments that are one object of JSON. ``begun``: it has begun. ``done``: it has ended. ``broken``: it is none."""

    begun: bool = False
    done: bool = False
    broken: bool = False
    _depth: int = 0
    _strings: JsonStrings = field(default_factory=JsonStrings)

    @property
    def in_string(self) -> bool:
        return self._strings.inside

    def feed(self, text: str) -> tuple[str, str]:
        """Return the JSON that a text adds, and what is left of it behind the arguments."""
        if not self.begun:
            text = text.lstrip()
            self.begun = text.startswith("{")
            self.broken = bool(text) and not self.begun
            if not self.begun:
                return "", text
        at = 0
        while at < len(text):
            if self._strings.inside:
                at = self._strings.skip(text, at)
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                return text, ""
            at = found.end()
            if found[0] == '"':
                self._strings.inside = True
                continue
            self._depth += 1 if found[0] in "{[" else -1
            if not self._depth:
                self.done = True
                return text[:at], text[at:]
        return text, ""

    def close(self) -> str:
        """Return what the end of the call adds."""
        return ""


class TagArguments:
    """Arguments that are texts between tags. What stands between them is left out, as transformers has it.

    Whether a text is a string or JSON is for the schema of the tool to say.
    """

    def __init__(self, form: TagForm, tool: str, types: ToolTypes) -> None:
        self._form = form
        self._tool, self._every = tool, types
        self.begun = True
        self.done = self.broken = False
        self._written = 0  # arguments so far
        self._kept = ""
        self._key: PatternReader | None = None
        self._types = EVERY
        self._value: list[str] | None = None
        self._strings = JsonStrings()

    @property
    def in_string(self) -> bool:
        """True inside of an argument, where the end of the region is a text."""
        return self._key is not None or self._value is not None

    def feed(self, text: str) -> tuple[str, str]:
        """Return the JSON that a text adds, and what is left of it behind the arguments."""
        made: list[str] = []
        self._kept += text
        while not self.done and self._step(made):
            pass
        if not self.done:
            return "".join(made), ""
        left, self._kept = self._kept, ""
        return "".join(made), left

    def close(self) -> str:
        """Return what the end of the call adds."""
        if self.done or self.in_string:
            return ""
        self.done = True
        return "}" if self._written else "{}"

    def _step(self, made: list[str]) -> bool:
        """Read up to the next border; return False if it has not come."""
        if self._value is not None:
            return self._read_value(self._value, made)
        if self._key is not None:
            return self._read_key(self._key)
        texts = [one for one in (self._form.before, self._form.tail) if one]
        places = [(place, one) for one in texts if (place := self._kept.find(one)) >= 0]
        if not places:
            self._kept = self._kept[min(begins(self._kept, one) for one in texts) :]
            return False
        place, found = min(places)
        self._kept = self._kept[place + len(found) :]
        if found == self._form.before:
            self._key = PatternReader((self._form.key, *self._form.middle))
        else:
            made.append(self.close())
        return True

    def _read_key(self, key: PatternReader) -> bool:
        kept, self._kept = self._kept, ""
        left = key.feed(kept)
        if left is None:
            return False
        self._kept = left
        if key.broken:
            self._key = None
            return True
        self._types = self._every.of(self._tool, key.found["key"])
        self._value, self._strings = [], JsonStrings()
        return True

    def _read_value(self, value: list[str], made: list[str]) -> bool:
        """Read on in a value. In one that cannot be a string, the text that ends it may be in a string of JSON."""
        text, after = self._kept, self._form.after
        at = 0
        if STRING not in self._types:
            at = self._strings.skip(text, 0)
            while not self._strings.inside and (quote := text.find('"', at)) >= 0 and not 0 <= text.find(after, at) < quote:
                self._strings.inside = True
                at = self._strings.skip(text, quote + 1)
        place = text.find(after, at) if not self._strings.inside else -1
        if place < 0:
            end = begins(text, after) if not self._strings.inside else len(text)
            value.append(text[:end])
            self._kept = text[end:]
            return False
        value.append(text[:place])
        self._kept = text[place + len(after) :]
        key = self._key.found["key"] if self._key is not None else ""
        made.append(
            ("{" if not self._written else ", ") + json.dumps(key, ensure_ascii=False) + ": " + self._json("".join(value))
        )
        self._written += 1
        self._key = self._value = None
        return True

    def _json(self, text: str) -> str:
        """Return the JSON of a value."""
        if self._form.strip == ALL:
            text = text.strip()
        elif self._form.strip == LINE:
            text = text.removeprefix("\n").removesuffix("\n")
        if self._types == {STRING}:
            return json.dumps(text, ensure_ascii=False)
        bare = text.strip()
        bare = PYTHON_WORDS.get(bare, bare)
        try:
            value = json.loads(bare, parse_constant=_refuse, parse_int=lambda digits: 0)
            kind = type_of(value)
            if kind in self._types and (kind != STRING or STRING not in self._types or self._form.json):
                return bare
        except (ValueError, RecursionError):
            pass
        return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
