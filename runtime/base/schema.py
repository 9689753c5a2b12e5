"""The wire form of a dataclass: its tag, by which two nodes know that they mean the same one, and which field travels where.

A dataclass of a program is known by its name and its field names: another field makes another type. One of this package is
recorded in ``wire_types.json`` (``python tests/runtime/wire_types.py`` writes it) with the tag and the order that it had
when it was first released, and keeps both for ever, so that neighbouring releases read each other's messages:

    added    a field with a default. It travels by its name, in a dict behind the others, where it is not its default; a
             reader that does not know the name drops it, and one that misses it takes the default
    removed  a field whose place holds a recorded ``filler`` for readers of other releases
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

RECORDS = "wire_types.json"
_PACKAGE = __name__.partition(".")[0]
Values = Callable[[Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class WireForm:
    """The form of a dataclass on the wire.

    places: its fields by position. fillers: plain data in the places of fields that it has no more. added: its fields
    behind them, which travel by name. recorded: neighbouring releases know it.
    """

    tag: int
    places: tuple[str, ...]
    fillers: Mapping[str, Any]
    added: tuple[str, ...]
    recorded: bool


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields that travel, in order."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.init)


def schema_tag(kind: type) -> int:
    """Return 32 bits that identify a dataclass on the wire."""
    return wire_form(kind).tag


@cache
def wire_form(kind: type) -> WireForm:
    """Return the wire form of a dataclass. Raises TypeError if a field was removed without a filler."""
    record, names = records().get(record_name(kind)), field_names(kind)
    if record is None:
        return WireForm(first_tag(kind), names, {}, (), False)
    places = tuple(record["places"])
    gone = [name for name in places if name not in names]
    fillers = {name: value for name, value in record.get("fillers", {}).items() if name in gone}
    if missing := [name for name in gone if name not in fillers]:
        raise TypeError(f"{kind.__qualname__} lost {missing[0]}, which other releases read; give it a filler in {RECORDS}")
    return WireForm(record["tag"], places, fillers, tuple(name for name in names if name not in places), True)


def first_tag(kind: type) -> int:
    """Return the tag of a dataclass that no release has had: 32 bits of a hash of its name and field names."""
    text = f"{kind.__qualname__}({','.join(field_names(kind))})"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


def record_name(kind: type) -> str:
    """Return the name under which a dataclass of this package is recorded, its layer and its name; else nothing."""
    package, _, module = kind.__module__.partition(".")
    return f"{module.partition('.')[0]}.{kind.__qualname__}" if package == _PACKAGE else ""


@cache
def records() -> dict[str, Any]:
    """Return what the last release had of each dataclass of this package that travels, by ``record_name``."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name(RECORDS).read_bytes())["types"]
    return found


@cache
def wire_values(kind: type) -> Values:
    """Return a function that gives the values of a dataclass as they travel behind its tag."""
    form = wire_form(kind)
    if not form.fillers and not form.added:
        return _getter(form.places)
    kept = _getter(tuple(name for name in form.places if name not in form.fillers))
    fillers = [(at, form.fillers[name]) for at, name in enumerate(form.places) if name in form.fillers]
    defaults = {f.name: _default(f) for f in dataclasses.fields(kind) if f.name in form.added}

    def values(value: Any) -> tuple[Any, ...]:
        found = list(kept(value))
        for at, filler in fillers:
            found.insert(at, filler)
        if added := {name: own for name, get in defaults.items() if (own := getattr(value, name)) is not get(own)}:
            found.append(added)
        return tuple(found)

    return values


def _getter(names: tuple[str, ...]) -> Values:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


def _default(field: dataclasses.Field[Any]) -> Callable[[Any], Any]:
    """Return a function that gives a value back if it equals the field's default."""
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return lambda own: field  # none: it travels always
    made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return lambda own: own if (own == made) is True else field
