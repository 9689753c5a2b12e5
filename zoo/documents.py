"""JSON documents of a zoo: a version of the schema, a checksum, and one way to write each value, so that any flipped bit
shows.

``from_fields`` makes dataclasses of the values, by their annotations. Does not know the documents' meaning.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Hashable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from ..gpu.model.fields import LONGEST, parse, shown
from ..gpu.regular_file import read_regular
from .errors import ZooDamaged, ZooError
from .layout import SCHEMA

T = TypeVar("T")


def encode(values: dict[str, Any]) -> bytes:
    """Return a document: ``values`` (JSON), the version of the schema, and a checksum over both."""
    body = {**values, "schema": SCHEMA}
    return _canonical({**body, "checksum": hashlib.blake2b(_canonical(body), digest_size=16).hexdigest()})


def decode(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the values of a document. Raises ZooDamaged, and ZooError for one of a later schema."""
    try:
        values = parse(raw, unique=True)
        if not isinstance(values, dict):
            raise ValueError(f"a JSON {type(values).__name__}")
    except ValueError as error:
        raise ZooDamaged(path, "a JSON object", str(error)) from None
    checksum = values.pop("checksum", None)
    expected = hashlib.blake2b(_canonical(values), digest_size=16).hexdigest()
    if checksum != expected or raw != _canonical({**values, "checksum": checksum}):
        raise ZooDamaged(path, f"the checksum {expected}", shown(checksum) if checksum != expected else "other spaces")
    if (schema := values.pop("schema", None)) != SCHEMA:
        raise ZooError(f"{path} is of schema {shown(schema)}, this program reads {SCHEMA}; use the release that wrote it")
    return values


def read_document(path: Path) -> dict[str, Any]:
    """Read a document. Raises ZooDamaged if it is missing or altered, OSError if it cannot be read."""
    try:
        if path.stat().st_size > LONGEST:
            raise ZooDamaged(path, f"at most {LONGEST} bytes", f"{path.stat().st_size}")
        return decode(read_regular(path, LONGEST), path)
    except (FileNotFoundError, NotADirectoryError):
        raise ZooDamaged(path, "a file", "none") from None


def from_fields(kind: type[T], values: object, path: Path) -> T:
    """Return a dataclass from an object made by ``dataclasses.asdict``. Fields with a default may be missing."""
    if not isinstance(values, dict):
        raise ZooDamaged(path, f"an object for {kind.__name__}", shown(values))
    hints = _hints(cast(Hashable, kind))
    if unknown := sorted(values.keys() - hints.keys()):
        raise ZooDamaged(path, f"fields of {kind.__name__}", shown(unknown[0]))
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}  # type: ignore[arg-type]
    if missing := sorted(needed - values.keys()):
        raise ZooDamaged(path, f"{missing[0]} of {kind.__name__}", "none")
    return kind(**{name: _value(hints[name], value, path) for name, value in values.items()})


def _value(hint: Any, value: Any, path: Path) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (single,) = set(arguments) - {type(None)}
        return None if value is None else _value(single, value, path)
    if origin is tuple and isinstance(value, list):
        return tuple([_value(arguments[0], item, path) for item in value])
    if origin is dict and isinstance(value, dict):
        return {key: _value(arguments[1], item, path) for key, item in value.items()}
    if is_dataclass(hint):
        return from_fields(cast(type[Any], hint), value, path)
    wanted = (int, float) if hint is float else hint
    if origin is not None or not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise ZooDamaged(path, f"a value of type {getattr(hint, '__name__', hint)}", shown(value))
    return value  # a whole number for a float field stays one: identities are made from the JSON


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind)
