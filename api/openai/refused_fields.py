"""The refusal of fields that would be ignored although they choose or shape the answer: other servers', and misspelt ones.

A value that requests nothing is not refused, nor is a value that the body also has under our own name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ...policies.nearest import edits
from ..checks import Body, shown
from ..errors import ApiError, bad_request
from .field_types import Field, equals_any
from .foreign_fields import BEGINNINGS, BOUNDS, FAMILIES, GROUPS, LENGTHS, QUIET_WORDS, ForeignField

LOOKED_AT = 256  # most names of a body that are compared with ours; each takes some ten microseconds
SHORT, LONG = 4, 9  # from these lengths on, names with one and two wrong letters count as misspellings
LONGEST_NAME = 64  # characters of a name whose words are looked at
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


class ForeignFields:
    """The fields that an endpoint refuses: ``foreign`` by name, and misspellings of ``fields`` that are not ``harmless``.

    ``reworded`` puts the remedies into the endpoint's own names of fields.
    """

    def __init__(
        self,
        foreign: Mapping[str, ForeignField],
        fields: Iterable[Field],
        harmless: Iterable[str] = (),
        reworded: Callable[[ForeignField], ForeignField] = lambda one: one,
    ) -> None:
        self._reworded = reworded
        own = [field.name for field in fields]
        self._known, quiet = frozenset(own), frozenset(harmless)
        self._foreign = {_plain(name): one for name, one in foreign.items() if name not in self._known}
        self._own = {_plain(name): name for name in own if name not in quiet}
        self._quiet = frozenset(map(_plain, quiet))
        self._beginnings = BEGINNINGS if "format" in foreign else {}
        remedies = {one.remedy for one in foreign.values()}
        concerned = {word: one for word, one in FAMILIES.items() if one.remedy in remedies}
        self._families = FAMILIES if "format" in foreign else concerned
        self._bounds = LENGTHS if "format" in foreign else None

    def check(self, body: Body) -> None:
        """Raise a 400 for the first field that would be ignored although it chooses or shapes the answer."""
        looked = 0
        for name, value in body.items():
            if name in self._known or value is None:
                continue
            looked += 1
            self._check_one(name, value, body, looked <= LOOKED_AT)
            if name in GROUPS and isinstance(value, dict):
                self._check_group(name, value)

    def _check_one(self, name: str, value: Any, body: Body, near: bool) -> None:
        plain = _plain(name)
        foreign = self._foreign.get(plain) or next(
            (one for begin, one in self._beginnings.items() if name.startswith(begin)), None
        )
        if foreign is None and near and (own := self._own.get(plain) or self._misspelt(plain)):
            if _is_obeyed(own, value, body):
                return
            message = f"{name} is not a field of this endpoint; did you mean {own}?"
            raise bad_request(message, name, "unknown_parameter")
        if foreign is None and plain not in self._quiet:
            foreign = self._family(name)
        if foreign is None or equals_any(value, foreign.neutral):
            return
        own_words = self._reworded(foreign)
        if not (self._is_off(foreign, body) or _is_obeyed(own_words.named, value, body)):
            raise _refusal(name, value, own_words)

    def _family(self, name: str) -> ForeignField | None:
        """Return the remedy for a field that no table names, by the words of its name."""
        words = _words(name) if len(name) <= LONGEST_NAME else ()
        if not QUIET_WORDS.isdisjoint(words):
            return None
        if self._bounds is not None and all(not words_.isdisjoint(words) for words_ in map(frozenset, BOUNDS)):
            return self._bounds
        return next((one for word, one in self._families.items() if word in words), None)

    def _is_off(self, foreign: ForeignField, body: Body) -> bool:
        """Return True if the body turns off the feature that the field belongs to."""
        switches = [(self._foreign[_plain(name)], body[name]) for name in foreign.switches if name in body]
        return any(equals_any(value, (None, *switch.neutral)) for switch, value in switches)

    def _misspelt(self, plain: str) -> str:
        """Return the field of ours that the name misspells by one letter (two in a long name), or an empty text."""
        allowed = 0 if len(plain) < SHORT else 1 if len(plain) < LONG else 2
        near = [one for one in self._own if len(one) >= SHORT and abs(len(one) - len(plain)) <= allowed]
        found = [(distance, one) for one in near if (distance := edits(plain, one)) <= allowed]
        return self._own[min(found)[1]] if found else ""

    def _check_group(self, group: str, inner: Body) -> None:
        """Raise a 400 for a field in a group that is a field of ours, or that would be refused in the body."""
        for name, value in inner.items():
            if name in self._known and value is not None and value not in ([], ""):
                message = f"{group}.{name} would be ignored; send {name} in the body itself, beside model"
                raise bad_request(message, f"{group}.{name}", "unsupported_parameter")
        try:
            self.check({name: value for name, value in inner.items() if name not in GROUPS})
        except ApiError as error:
            raise bad_request(f"{group}.{error.message}", f"{group}.{error.param}", error.code) from None


@lru_cache(maxsize=1024)
def _words(name: str) -> frozenset[str]:
    """Return the words of a name: of maxInputTokens, max, input and tokens."""
    return frozenset(word.casefold() for word in _WORD.findall(name))


def _plain(name: str) -> str:
    """Return a name without case and separators: maxTokens, max-tokens and max_tokens are one."""
    return name.casefold().replace("_", "").replace("-", "").replace(".", "").replace(" ", "")


def _is_obeyed(own: str, value: Any, body: Body) -> bool:
    """Return True if the body has the same value under our own name, so that nothing is lost."""
    return bool(own) and own in body and equals_any(value, (body[own],))


def _refusal(name: str, value: Any, foreign: ForeignField) -> ApiError:
    example = repr(value) if isinstance(value, str) and len(value) <= 64 else "its name"
    remedy = foreign.remedy.format(value=example)
    message = f"{name} ({shown(value)}) is not supported by this server; {remedy}"
    return bad_request(message, name, "unsupported_parameter")
