"""The base of every part of the settings: fields that check themselves.

Behind the type of a field stand its meaning (a text, shown to users), its rules (bounds, choices), and its marks. A part
checks the rules of its fields when it is made, then what its fields must be together. The rules of a table hold for each
of its entries.
"""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from .errors import SettingsError

Texts = dict[str, str]
Counts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a number. ``give``: the remedy, behind the word "give". ``above``: ``minimum`` itself is too little."""

    give: str
    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False

    def remedy(self, value: Any) -> str:
        """Return what to do about a value, or an empty text if it is allowed."""
        within = self.minimum <= value <= self.maximum and not (self.above and value == self.minimum)
        return "" if within and math.isfinite(value) else f"give {self.give}"


class AtMost(Bounds):
    """A bound beyond any machine: a larger number is a slip, which would only be noticed when tables are made for it."""

    __slots__ = ()

    def __init__(self, maximum: int) -> None:
        Bounds.__init__(self, f"at most {maximum}", maximum=maximum)


class AllowedTexts:
    """The values that a text may have. An empty one is not listed."""

    __slots__ = ("values",)

    def __init__(self, *values: str) -> None:
        self.values = values

    def remedy(self, value: Any) -> str:
        """Return what to do about a value, or an empty text if it is allowed."""
        return "" if value in self.values else f"choose one of {', '.join(filter(None, self.values))}"


class Mark(Enum):
    """A property of a field that matters where it is read and printed."""

    BYTES = "a number of bytes, also written as 2GiB"
    SECRET = "never shown"


BYTES, SECRET = Mark.BYTES, Mark.SECRET
AT_LEAST_ONE = Bounds("at least 1", 1)
COUNT = Bounds("0 or more", 0)
SECONDS = Bounds("a positive number of seconds", 0, above=True)
LEAST_LOG = Bounds(f"at least {64 << 10} bytes", 64 << 10)  # in two files; in an event log each starts with a snapshot


@cache
def field_hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of a part's fields, by name, with what stands behind their types."""
    return typing.get_type_hints(kind, include_extras=True)


@cache
def _rules(kind: Any) -> list[tuple[str, Bounds | AllowedTexts]]:
    """Return the rules of a part's fields."""
    hints = field_hints(kind)
    behind = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return [(name, rule) for name, rules in behind.items() for rule in rules if isinstance(rule, Bounds | AllowedTexts)]


class SettingsPart:
    """A part of the settings, a frozen dataclass (see the module)."""

    __slots__ = ()

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, rule in _rules(kind):
            value = getattr(self, name)
            entries = {f"{name}.{entry}": one for entry, one in value.items()} if isinstance(value, dict) else {name: value}
            for label, one in entries.items():
                if remedy := rule.remedy(one):
                    raise SettingsError(f"{label} is {one!r}; {remedy}")
        self.check_together()

    def check_together(self) -> None:
        """Refuse fields that do not go together, or that no single rule describes."""
