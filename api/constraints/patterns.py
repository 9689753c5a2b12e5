"""Expressions that the grammar library reads otherwise than JSON Schema does; they are refused."""

from __future__ import annotations

import re

_GROUP = re.compile(r"\(\?(?!:|P?<[A-Za-z_])([^)]{0,8})")
_LOOK = {"=": "look-ahead", "!": "look-ahead", "<": "look-behind"}


def pattern_fault(pattern: str) -> str:
    """Return half a sentence on what cannot be held exactly in an expression; empty: nothing.

    Look-around and the like are refused, and what is an operator in one notation and a character in the other: flags, and
    ``[``, ``&&``, ``--`` and ``~~`` in a class. The library itself refuses back-references and anchors inside.
    """
    inside = False  # in a class
    at = 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            if pattern[at + 1 : at + 2] in ("b", "B"):
                return r"has the word boundary \b, which cannot be held; write the characters instead"
            at += 2
            continue
        if inside:
            if c == "]":
                inside = False
            elif c == "[" or pattern[at : at + 2] in ("&&", "--", "~~"):
                return (
                    f"has {pattern[at : at + 2]!r} in a class, which notations read differently; put a backslash before it"
                )
        elif c == "[":
            inside = True
            at += 2 if pattern[at + 1 : at + 2] == "^" else 1
            if pattern[at : at + 1] == "]":
                return "has a class that begins with ], which notations read differently; put a backslash before it"
            continue
        elif c == "(" and (group := _GROUP.match(pattern, at)):
            kind = _LOOK.get(group[1][:1], "a flag")
            return f"has {kind} ({pattern[at : at + 4]}...), which cannot be held; write the expression without it"
        at += 1
    return ""
