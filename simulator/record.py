"""Tables of TOML or JSON as dataclasses.

All fields must be known, none missing, and all of their types. Numbers must be finite, not below 0, and not above the
``Most`` that a field is annotated with. A field annotated with ``Size`` also accepts a text such as "2GiB".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from ..policies.binary_size import parse_size
from ..policies.nearest import suggestion

T = TypeVar("T")
Fault = Callable[[list[str | int], str], Exception]  # called with the place of a field and what is wrong with it


@dataclass(frozen=True, slots=True)
class Most:
    """The largest value of a number. A larger one is a slip, and would only be noticed when memory or patience ends."""

    value: int


@dataclass(frozen=True, slots=True)
class Size:
    """The mark of a number of bytes, which may be written with a unit, as in the settings."""


Tokens = Annotated[int, Most(1 << 24)]  # tokens of a request: they are all listed
Bytes = Annotated[int, Size()]
Share = Annotated[float, Most(1)]


def record(kind: type[T], table: Any, error: Fault, place: list[str | int]) -> T:
    """Return an instance of a dataclass from a table. Raises the exception that ``error`` makes."""
    if not isinstance(table, dict):
        raise error(place or ["workload"], "is no table of fields")
    hints, known = get_type_hints(kind, include_extras=True), [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in table:
        if name not in known:
            raise error([*place, name], f"does not exist; {suggestion(name, known)}")
    for one in fields(kind):  # type: ignore[arg-type]
        if one.name not in table and one.default is MISSING and one.default_factory is MISSING:
            raise error([*place, one.name], "is missing")
    return kind(**{name: _value(hints[name], value, error, [*place, name]) for name, value in table.items()})


def _value(kind: Any, value: Any, error: Fault, place: list[str | int]) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise error(place, f"is {value!r}; give a list")
        return tuple(_value(get_args(kind)[0], one, error, [*place, n]) for n, one in enumerate(value))
    if get_origin(kind) is Annotated:
        kind, mark = get_args(kind)
        if isinstance(mark, Size):
            return _value(kind, _bytes(value, error, place), error, place)
        found = _value(kind, value, error, place)
        if found > mark.value:
            raise error(place, f"is {found}; give at most {mark.value:,}")
        return found
    if isinstance(kind, UnionType):  # a table or nothing, where nothing is the field left out
        kind = get_args(kind)[0]
    if kind not in (int, float, str, bool):
        return record(kind, value, error, place)
    allowed: type | UnionType = int | float if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise error(place, f"is {value!r}; give {names[kind]}")
    if isinstance(value, int | float) and not 0 <= value < float("inf"):
        raise error(place, f"is {value}; give 0 or more" + ("" if value < 0 else ", and a finite number"))
    return value


def _bytes(value: Any, error: Fault, place: list[str | int]) -> Any:
    """Return the number of bytes that a text names; a value that is not a text is left as it is."""
    if not isinstance(value, str):
        return value
    size = parse_size(value)
    if size is None:
        raise error(place, f"is {value!r}; give a number of bytes such as 2GiB")
    return size
