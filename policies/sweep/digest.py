"""A digest of any state of plain values, columns and objects: no list of what counts, which could be incomplete."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass


def digest(value: object) -> bytes:
    """16 bytes. The order of dicts counts, because queues are kept in it; that of sets does not."""
    return hashlib.blake2b(repr(_plain(value)).encode(), digest_size=16).digest()


def _plain(value: object) -> object:
    match value:
        case dict():
            return [(_plain(key), _plain(entry)) for key, entry in value.items()]
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case set() | frozenset():
            return sorted(repr(_plain(entry)) for entry in value)
        case None | int() | float() | str() | bytes():
            return value
    if is_dataclass(value):
        return [type(value).__name__, *[_plain(getattr(value, field.name)) for field in fields(value)]]
    return [type(value).__name__, _plain(vars(value))]
