"""The rules of a Lark grammar, as they are made. A special token of the tokenizer stands for itself, in no text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ....policies.plan.grammar import JSON_OPTIONS
from .call_forms import TurnError

ANY = "(?s:.*)"


class LarkRules:
    """The rules of one grammar. ``special``: the special tokens by their texts."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._names = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._rules: list[str] = []

    def add(self, name: str, expression: str) -> None:
        """Add a rule."""
        self._rules.append(f"{name}: {expression}")

    @property
    def count(self) -> int:
        """The number of rules."""
        return len(self._rules)

    def drop(self, count: int) -> None:
        """Forget all rules but the first ``count``."""
        del self._rules[count:]

    def text(self, start: str) -> str:
        """Return the grammar with this start."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def special_in(self, text: str) -> bool:
        """Return whether a text has a special token, which stands in no text of a grammar."""
        return self._names.search(text) is not None

    def without(self, texts: Sequence[str]) -> str:
        """Return the part of an expression that rules these texts out. A special token is in no text anyway."""
        plain = [literal(text) for text in texts if not self.special_in(text)]
        return f" & ~/{ANY}({'|'.join(plain)}){ANY}/" if plain else ""

    def any(self, texts: Sequence[str]) -> str:
        """Return the expression of one of these texts."""
        return "(" + " | ".join(map(self.exactly, texts)) + ")"

    def exactly(self, text: str) -> str:
        """Return the expression of a text."""
        parts, at = [], 0
        for found in self._names.finditer(text):
            parts += [json.dumps(text[at : found.start()])] if at < found.start() else []
            parts.append(f"<[{self._special[found[0]]}]>")
            at = found.end()
        return " ".join([*parts, *([json.dumps(text[at:])] if at < len(text) else [])]) or '""'

    def check_delimiter(self, text: str) -> None:
        """Raise TurnError for a delimiter that begins with characters, and has a special token behind them."""
        found = self._names.search(text)
        if found is not None and found.start() > 0:
            raise TurnError(f"has the delimiter {text[:60]!r} with a special token inside, which no grammar can have")

    @staticmethod
    def json(schema: Mapping[str, Any] | bool) -> str:
        """Return the expression of JSON of a schema, with the library's options, which is an object for them."""
        return f"%json {json.dumps({'x-guidance': JSON_OPTIONS, **(schema if isinstance(schema, Mapping) else {})})}"


def literal(text: str) -> str:
    """Return the expression that matches this text alone."""
    return "".join(c if c.isalnum() and ord(c) < 0x80 else f"\\x{{{ord(c):X}}}" for c in text)
