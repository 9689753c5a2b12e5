"""A constraint as a request asks for it, and the limits that hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.plan.grammar import LARK, REGEX
from ..checks import shown, unicode_text
from ..errors import bad_request
from .patterns import pattern_fault

LONGEST = 256 << 10  # bytes of a schema, an expression, a grammar, or all choices


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language for the answer. ``field``: its name in the request. ``ignored``: parts of it without an effect."""

    form: str  # one of ``FORMS``
    text: str
    field: str
    ignored: tuple[str, ...] = ()


def regex(value: object, name: str) -> Constraint:
    """Return the constraint of an expression that the whole answer matches."""
    text = _text(value, name)
    if fault := pattern_fault(text):
        raise bad_request(f"{name} {fault}", name)
    return Constraint(REGEX, text, name)


def choice(value: object, name: str) -> Constraint:
    """Return the constraint of a list of texts, one of which is the answer."""
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise bad_request(f"{name} is {shown(value)}; give a list of texts, none of them empty", name, "invalid_type")
    check_length(sum(len(one.encode(errors="replace")) for one in value), name)
    return Constraint(REGEX, "|".join(_literal(unicode_text(one, name)) for one in value), name)


def grammar(value: object, name: str) -> Constraint:
    """Return the constraint of a Lark grammar."""
    text = _text(value, name)
    if "::=" in text:
        raise bad_request(f"{name} is in BNF (it has ::=); write it as a Lark grammar, whose rules have a colon", name)
    if "x-guidance" in text:
        raise bad_request(f"{name} has the key x-guidance, which would loosen it; leave that out", name)
    return Constraint(LARK, text, name)


def check_length(length: int, name: str) -> None:
    """Raise a 400 for a constraint of ``length`` bytes if these are too many."""
    if length > LONGEST:
        raise bad_request(f"{name} has {length:,} bytes; give at most {LONGEST:,}", name)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad_request(f"{name} is {shown(value)}; give a text that is not empty", name, "invalid_type")
    check_length(len(value.encode(errors="replace")), name)
    return unicode_text(value, name)


def _literal(text: str) -> str:
    """Return the expression that matches this text alone."""
    return "".join(c if c.isalnum() or ord(c) > 0x7F else f"\\x{{{ord(c):X}}}" for c in text)
