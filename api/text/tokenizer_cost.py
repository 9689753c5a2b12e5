"""The cost of a tokenizer's parts: which of them take a time in proportion to a text, so that a short text is short work.

Reads the parts as tokenizer.json has them. Never runs one.
"""

from __future__ import annotations

import re
from typing import Any

_CLASS = re.compile(r"\\[pP]\{\^?\w+\}|\[(?:\\.|\[:\w+:\]|[^\]\\])*\]|\\.")  # a character: \p{L}, [a-z], \s
_COUNT = r"\{\d*,?\d*\}"
_QUANTIFIER = rf"(?:[*+?][?+]?+|{_COUNT}\??+)"  # with the sign that makes it lazy or possessive
_QUANTIFIERS = re.compile(_QUANTIFIER)
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{(?!0?,1\}))")  # tried in exponentially many ways
_REPEATED_TWICE = re.compile(rf"{_QUANTIFIER}(?:[*+?]|{_COUNT})")  # the same without a group
_REFERENCE = re.compile(r"\\(?:[1-9]|[gk][<'])|\(\?[~(]")  # to another part of the expression
_MOST_UNBOUNDED = 2  # in one alternative: each more is another power of the text's length
_MOST_CHOICES = 4096  # numbers of repeats of all bounded parts in one alternative, multiplied
_LONGEST = 4096  # characters of an expression
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
    """Return whether an expression repeats no group or repeat, and has few ways to match in each alternative."""
    if len(expression) > _LONGEST or _REFERENCE.search(expression):
        return False
    plain = _CLASS.sub("x", expression).replace("(?", "(")  # signs within a class repeat nothing
    if _REPEATED_GROUP.search(plain) or _REPEATED_TWICE.search(plain):
        return False
    return all(map(_has_few_ways, _alternatives(plain)))


def _alternatives(plain: str) -> list[str]:
    """Return the alternatives of an expression that are not in a group."""
    found, depth = [""], 0
    for char in plain:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return found


def _has_few_ways(alternative: str) -> bool:
    """Return whether an alternative has few repeats without a bound, and few numbers of repeats in the others."""
    unbounded, choices = 0, 1
    for quantifier in _QUANTIFIERS.findall(alternative):
        low, comma, high = quantifier.rstrip("?+").strip("{}").partition(",")
        if quantifier[0] in "*+" or (comma and not high):
            unbounded += 1
        else:
            choices *= 2 if quantifier[0] == "?" else int(high or low or 0) - int(low or 0) + 1
        if not 0 < choices <= _MOST_CHOICES:
            return False
    return unbounded <= _MOST_UNBOUNDED
