"""The cost of a tokenizer's parts: which of them take a time in proportion to a text, so that a short text is short work.

Reads the parts as tokenizer.json has them. Never runs one.
"""

from __future__ import annotations

import re
from typing import Any

_REPEATED_GROUP = re.compile(r"(?<!\\)\)[+*{]")  # tried in exponentially many ways
_UNBOUNDED = re.compile(r"(?<!\\)[+*]|\{\d*,\}")
_MOST_UNBOUNDED = 2  # in one alternative: each more is another power of the text's length
_GROWTH = 8  # characters that one match may become


def is_quick(part: Any) -> bool:
    """Return whether a part, with all parts in it, has simple expressions only and makes no text much longer."""
    if isinstance(part, list):
        return all(map(is_quick, part))
    if not isinstance(part, dict):
        return True
    pattern = part.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(expression, str) and not _is_simple(expression):
        return False
    added = [part.get(name) for name in ("content", "prepend", "replacement")]
    if any(isinstance(text, str) and len(text) > _GROWTH for text in added):
        return False
    return all(is_quick(inner) for inner in part.values() if isinstance(inner, dict | list))


def _is_simple(expression: str) -> bool:
    """Return whether an expression repeats no group, and few characters without a bound in each alternative."""
    plain = re.sub(r"\[(?:\\.|[^\]\\])*\]", "x", expression)  # signs within a class repeat nothing
    if _REPEATED_GROUP.search(plain):
        return False
    return all(len(_UNBOUNDED.findall(one)) <= _MOST_UNBOUNDED for one in plain.split("|"))
