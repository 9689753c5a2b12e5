"""Plain data form of values, for snapshots: lists, dicts, str, int, float, bytes and None only.

A dataclass becomes ``[name, field, ...]``, a set the sorted list of its members, an enum its value. ``from_plain`` follows
an annotation. (Messages use ``runtime/base/codec.py``, which checks untrusted input; this module trusts its input.)
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

Plain = Any  # None | int | float | str | bytes | list[Plain] | dict[str | int, Plain]
_BARE = frozenset((type(None), bool, int, float, str, bytes))


def to_plain(value: object) -> Plain:
    """Return the plain form of a value. Raises TypeError if it has none."""
    if type(value) in _BARE:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return list(value) if _BARE.issuperset(map(type, value)) else [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(to_plain(item) for item in value)
    if is_dataclass(value):
        return [type(value).__name__, *[to_plain(getattr(value, field.name)) for field in fields(value)]]
    raise TypeError(f"a {type(value).__name__} has no plain form")


def from_plain(annotation: Any, data: Plain) -> Any:
    """Return the value that ``to_plain`` was given, as a value of the annotated type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        return list(data) if arguments[0] in _BARE else [from_plain(arguments[0], item) for item in data]
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple([from_plain(arguments[0], item) for item in data])
        return tuple([from_plain(kind, item) for kind, item in zip(arguments, data, strict=True)])
    if origin is dict:
        return {from_plain(arguments[0], key): from_plain(arguments[1], item) for key, item in data.items()}
    if origin in (set, frozenset):
        return origin(data)
    if origin in (types.UnionType, typing.Union):
        return _member(arguments, data)
    if isinstance(annotation, type) and is_dataclass(annotation):
        pairs = zip(_kinds(annotation).items(), data[1:], strict=True)
        return annotation(**{name: from_plain(kind, item) for (name, kind), item in pairs})
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation(data)
    return data


def _member(members: tuple[Any, ...], data: Plain) -> Any:
    """Return a union's value: None, or the dataclass that the name says."""
    if data is None:
        return None
    named = {member.__name__: member for member in members if isinstance(member, type) and is_dataclass(member)}
    (single,) = [named[data[0]]] if isinstance(data, list) and data and data[0] in named else set(members) - {type(None)}
    return from_plain(single, data)


@cache
def _kinds(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass with their annotations, in order."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
