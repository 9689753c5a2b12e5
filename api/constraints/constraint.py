"""A constraint as a request asks for it, and the limits that hold for all of them."""

from __future__ import annotations

from typing import NamedTuple

from ...policies.plan.grammar import REGEX
from ..checks import shown, unicode_text
from ..errors import bad_request
from .patterns import pattern_fault

LONGEST = 256 << 10  # bytes of a schema, a grammar, or all choices
LONGEST_TEXT = 16 << 10  # bytes of an expression, or of one choice: a mask looks at all that is forced to come


class Constraint(NamedTuple):
    """A language for the answer. ``field``: its name in the request. ``ignored``: parts of it without an effect."""

    form: str  # one of ``FORMS``
    text: str
    field: str
    ignored: tuple[str, ...] = ()


def regex(value: object, name: str) -> Constraint:
    """Return the constraint of an expression that the whole answer matches."""
    text = text_of(value, name, LONGEST_TEXT)
    if fault := pattern_fault(text):
        raise bad_request(f"{name} {fault}", name)
    return Constraint(REGEX, text, name)


def choice(value: object, name: str) -> Constraint:
    """Return the constraint of a list of texts, one of which is the answer."""
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise bad_request(f"{name} is {shown(value)}; give a list of texts, none of them empty", name, "invalid_type")
    sizes = [len(one.encode(errors="replace")) for one in value]
    check_length(sum(sizes), name)
    check_length(max(sizes), f"a text of {name}", LONGEST_TEXT)
    return Constraint(REGEX, "|".join(literal(unicode_text(one, name)) for one in value), name)


def check_length(length: int, name: str, limit: int = LONGEST) -> None:
    """Raise a 400 for a constraint of ``length`` bytes if these are too many."""
    if length > limit:
        raise bad_request(f"{name} has {length:,} bytes; give at most {limit:,}", name)


def text_of(value: object, name: str, limit: int = LONGEST) -> str:
    """Return a text; raise a 400 for anything else, and for more than ``limit`` bytes."""
    if not isinstance(value, str) or not value:
        raise bad_request(f"{name} is {shown(value)}; give a text that is not empty", name, "invalid_type")
    check_length(len(value.encode(errors="replace")), name, limit)
    return unicode_text(value, name)


def literal(text: str) -> str:
    """Return the expression that matches this text alone."""
    return "".join(c if c.isalnum() or ord(c) > 0x7F else f"\\x{{{ord(c):X}}}" for c in text)
