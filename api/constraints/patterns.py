"""Expressions for the grammar library: what it reads otherwise than JSON Schema does is refused, or written otherwise.

The library has a fault: a class with all control characters also matches the escapes of the quote and the backslash in a
JSON text, although it names neither of the two (``[^"]``). So no class of a schema has NUL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_GROUP = re.compile(r"\(\?(?!:|P?<[A-Za-z_])([^)]{0,8})")
_NUL = re.compile(r"\x00|\\(?:0|x00|u0000|U0{8}|[xu]\{0+\})")
_LETTERS = re.compile(
    r"p(?:[LMN]|\{(?:[LMN][a-z]?|Letter|Latin|Greek|Cyrillic|Arabic|Hebrew|Han|Hiragana|Katakana|Hangul)\})"
)
_UNCLEAR = ("A", "z", "a")  # letters in the notation of schemas; in the library's, both ends of a text and a bell
_UNCLEAR_REMEDY = "^, $ or the character itself"
_LOOK = {"=": "look-ahead", "!": "look-ahead", "<": "look-behind"}


def pattern_fault(pattern: str) -> str:
    """Return half a sentence on what cannot be held exactly in an expression; empty: nothing.

    Look-around and the like are refused, and what is an operator in one notation and a character in the other: flags, and
    ``[``, ``&&``, ``--`` and ``~~`` in a class. The library itself refuses back-references and anchors inside. What does not
    close is refused here, because an expression becomes a part of others.
    """
    inside = False  # in a class
    at = groups = 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            if at + 1 == len(pattern):
                return "ends in a backslash; write two of them for the character"
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
        groups += (c == "(") - (c == ")")
        if groups < 0:
            return f"has a closing bracket at {at} without its opening one; put a backslash before it"
        at += 1
    return "has a bracket that does not close; close it, or put a backslash before it" if inside or groups else ""


def schema_pattern(pattern: str) -> tuple[str, str]:
    """Return an expression of a schema as the library is given it, and half a sentence on what cannot be held, or "".

    A negated class leaves out NUL. Other classes with NUL are refused.
    """
    if fault := pattern_fault(pattern):
        return pattern, fault
    written: list[str] = []
    at = 0
    inside = negated = False  # in a class, in one that begins with ^
    while at < len(pattern):
        if not negated and _NUL.match(pattern, at):
            return (
                pattern,
                r"names the character \x00, which cannot be held; leave it out, or name it in a class like [^\x00a]",
            )
        if pattern[at] == "\\":
            if pattern[at + 1 : at + 2] in _UNCLEAR:
                return pattern, f"has {pattern[at : at + 2]}, which notations read differently; write {_UNCLEAR_REMEDY}"
            if not negated and pattern[at + 1 : at + 2] in ("p", "P") and not _LETTERS.match(pattern, at + 1):
                return (
                    pattern,
                    rf"has {pattern[at : at + 6]}..., which cannot be held; write the characters, or \p{{L}} or \p{{N}}",
                )
            written.append(pattern[at : at + 2])
            at += 2
        elif not inside and pattern.startswith("[^", at):
            written.append(r"[^\x00")
            at += 2
            inside = negated = True
        else:
            inside = pattern[at] == "[" or (inside and pattern[at] != "]")
            negated = negated and inside
            written.append(pattern[at])
            at += 1
    return "".join(written), ""


LONGEST_NAME = 80  # characters of a name beside others; each is a level of the expression
_ANY = r"(?:.|\n)"


def names_besides(names: Iterable[str]) -> str:
    """Return an expression, in search of which every name but these is found."""
    tree: dict[str, Any] = {}
    for name in names:
        place = tree
        for character in name:
            place = place.setdefault(character, {})
        place[""] = True
    return f"^{_others(tree)}$" if tree else ""


def _others(tree: dict[str, Any]) -> str:
    """Return an expression for all texts that are not in a tree of characters; its key "" marks the end of one."""
    found = [] if "" in tree else [""]
    codes = {character: f"\\x{{{ord(character):X}}}" for character in tree if character}
    found.append(rf"[^\x00{''.join(codes.values())}]{_ANY}*" if codes else f"{_ANY}+")
    found += [code + _others(tree[character]) for character, code in codes.items()]
    return f"(?:{'|'.join(found)})"
