"""The defaults that a model gives to requests: a system prompt for chats, and sampling fields.

This module owns the list of these fields and their application. Defaults travel as a JSON object in text. They are checked
by the rules of requests when the model is configured or added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from ...policies.nearest import suggestion
from ..checks import shown
from ..errors import ApiError
from .field_types import Field, Integer, Text
from .fields import COMPLETION_OPTIONS, LARGEST, Options

LONGEST_SYSTEM = 1 << 16  # characters
_SAMPLED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)
_LIMIT = "max_tokens"
DEFAULTS = (
    Field("system", Text(LONGEST_SYSTEM), "The system message of chats that have none."),
    *(
        Field(one.name, one.kind, f"For requests without it. {one.text}")
        for one in COMPLETION_OPTIONS
        if one.name in _SAMPLED
    ),
    Field(_LIMIT, Integer(1, LARGEST), "For requests without it: most tokens of the answer, fewer where they do not fit."),
)
_KINDS = {one.name: one.kind for one in DEFAULTS}
Made = TypeVar("Made", bound=Options)


def checked_defaults(given: Mapping[str, Any], where: str) -> str:
    """Return the defaults of one model in the form in which they travel; "" for none. ``where``: prefix of the field names.

    Raise ApiError, naming the field, for a value that no request may have and for a field that cannot be a default.
    """
    known = {}
    for name, value in given.items():
        if name not in _KINDS:
            message = f"{where}{name} is no default of a model; {suggestion(name, sorted(_KINDS))}"
            raise ApiError(400, message, param=f"{where}{name}")
        if value is not None:
            plain = list(value) if isinstance(value, tuple) else value  # a list, as in JSON
            _KINDS[name].read(plain, f"{where}{name}")
            known[name] = plain
    return json.dumps(known, sort_keys=True) if known else ""


def value_of(name: str, text: str) -> Any:
    """Return the value of a default given on the command line: a number or a JSON list, unless the field is a text."""
    if isinstance(_KINDS.get(name), Text):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # a stop string, or a value that the field's own rule refuses


def filled(options: Made, defaults: str) -> Made:
    """Return a request's options, with the model's defaults for the fields that it does not set."""
    found = {name: value for name, value in _read(defaults).items() if name not in (*options.named, "system", _LIMIT)}
    return replace(options, **found) if found else options


def most_tokens(defaults: str, otherwise: int | None) -> int | None:
    """Return the limit on new tokens for a request that sets none; None for all that fit."""
    found: int | None = _read(defaults).get(_LIMIT, otherwise)
    return found


def with_system(messages: list[dict[str, Any]], defaults: str) -> list[dict[str, Any]]:
    """Return a conversation with the model's system message in front, unless it has one of its own."""
    system = _read(defaults).get("system", "")
    if not system or any(message["role"] in ("system", "developer") for message in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


@lru_cache(maxsize=1024)
def _read(defaults: str) -> Mapping[str, Any]:
    """Return checked defaults by the names and in the types of ``Options``."""
    given = json.loads(defaults) if defaults else {}
    assert isinstance(given, dict), shown(given)
    return {name: _KINDS[name].read(value, name) for name, value in given.items()}
