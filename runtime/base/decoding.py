"""Deserialization: from plain data to values, checked against annotations, strictly and field by field.

Exact types (an int is taken where a float is declared), known fields alone but for what a neighbouring release adds
(``schema.py``). Plans for each annotation are compiled once; how values are encoded, and what bounds their size, is
``codec.py``'s.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from .buffers import is_array, is_tensor
from .errors import DecodeError
from .schema import WireForm, field_names, schema_tag, wire_form

Decoder = Callable[[Any], Any]
_PLAIN = (bool, int, str, bytes, float)


def decode(annotation: Any, data: Any) -> Any:
    """Return ``data`` (from ``unpack``) as a value of the annotated type. Raises DecodeError, naming the field."""
    try:
        return decoder(annotation)(data)
    except RecursionError as error:
        raise DecodeError("a value is nested too deeply") from error


def received(what: str, target: object, endpoint: str, typed: bool, value: Any, annotation: Any) -> Any:
    """Return an answer or an item as its reader wants it. ``annotation`` None: as plain data; ``typed``: it holds
    dataclasses.

    Raises DecodeError, which begins with ``what`` it is, and whose.
    """
    if annotation is None:
        if typed:
            raise DecodeError(f"{what} of {target}.{endpoint} holds dataclasses; call it with returns=TYPE")
        return value
    try:
        return decode(annotation, value)
    except DecodeError as error:
        raise DecodeError(f"{what} of {target}.{endpoint}: {error}") from error


@cache
def decoder(annotation: Any) -> Decoder:
    """Return the compiled plan for an annotation. Raises TypeError for one that cannot travel (the declaration is at
    fault).
    """
    if annotation is Any:
        return _identity
    if annotation is None or annotation is type(None):
        return _exactly(type(None))
    if annotation is float:
        return _float
    if annotation in (bool, int, str, bytes):
        return _exactly(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if annotation in (list, tuple, dict):
        origin, args = annotation, {list: (Any,), tuple: (Any, ...), dict: (Any, Any)}[annotation]
    if origin in (list, Sequence):
        return _list(args[0])
    if origin is tuple:
        return _tuple(args)
    if origin in (dict, Mapping):
        return _dict(*args)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _dataclass(annotation)
    module, name = getattr(origin or annotation, "__module__", ""), getattr(origin or annotation, "__name__", "")
    if module == "numpy" and name == "ndarray":
        return _array
    if module == "torch" and name == "Tensor":
        return _tensor
    raise TypeError(
        f"annotation {annotation!r} cannot travel; use plain types, list, tuple, dict, dataclasses, enums or arrays"
    )


def _identity(data: Any) -> Any:
    return data


def _wrong(expected: str, data: Any) -> DecodeError:
    return DecodeError(f"expected {expected}, got {type(data).__name__}")


def _exactly(kind: type) -> Decoder:
    def check(data: Any) -> Any:
        if type(data) is not kind:
            raise _wrong(kind.__name__, data)
        return data

    return check


def _float(data: Any) -> float:
    if type(data) is float:
        return data
    if type(data) is int:
        return float(data)
    raise _wrong("float", data)


def _array(data: Any) -> Any:
    if not is_array(data):
        raise _wrong("array", data)
    return data


def _tensor(data: Any) -> Any:
    if not is_tensor(data):
        raise _wrong("tensor", data)
    return data


def _list(item: Any) -> Decoder:
    if item in (bool, int, str, bytes):  # the long ones (token ids): checked without a Python call for each
        exact = {item}

        def check(data: Any) -> Any:
            if type(data) is not list:
                raise _wrong("list", data)
            if data and set(map(type, data)) != exact:
                raise DecodeError(f"expected a list of {item.__name__}")
            return data

        return check

    def build(data: Any) -> Any:
        if type(data) is not list:
            raise _wrong("list", data)
        if not data:
            return data
        each = decoder(item)
        return [each(part) for part in data]

    return build


def _tuple(args: tuple[Any, ...]) -> Decoder:
    if len(args) == 2 and args[1] is Ellipsis:
        whole = _list(args[0])
        return lambda data: tuple(whole(data))
    parts = [decoder(arg) for arg in args]

    def build(data: Any) -> Any:
        if type(data) is not list or len(data) != len(parts):
            raise _wrong(f"{len(parts)} items", data)
        return tuple([part(value) for part, value in zip(parts, data, strict=True)])

    return build


def _dict(key: Any, value: Any) -> Decoder:
    if key is str and value is Any:  # what an application adds to each heartbeat: checked without a Python call for each key

        def check(data: Any) -> Any:
            if type(data) is not dict:
                raise _wrong("dict", data)
            if strange := set(map(type, data)) - {str}:
                raise DecodeError(f"expected str, got {strange.pop().__name__}")
            return data

        return check

    plans: list[Decoder] = []

    def build(data: Any) -> Any:
        if type(data) is not dict:
            raise _wrong("dict", data)
        if not plans:  # only now, so that a type may refer to itself
            plans.extend((decoder(key), decoder(value)))
        keys, values = plans
        return {keys(k): values(v) for k, v in data.items()}

    return build


def _enum(kind: type[enum.Enum]) -> Decoder:
    def build(data: Any) -> Any:
        try:
            return kind(data)
        except (ValueError, TypeError) as error:
            raise DecodeError(f"{str(data)[:80]!r} is not a {kind.__name__}") from error

    return build


def _union(members: tuple[Any, ...]) -> Decoder:
    """Return the plan for a union, whose members must differ on the wire: plain types by type, dataclasses by tag, one
    container at most.
    """
    by_type: dict[type, Decoder] = {}
    by_tag: dict[int, type] = {}
    tagged: dict[int | None, Decoder] = {}  # filled with the first of each tag, so that a type may refer to itself
    for member in members:
        kind = typing.get_origin(member) or (type(None) if member is None else member)
        if dataclasses.is_dataclass(kind):
            by_tag[schema_tag(typing.cast(type, kind))] = typing.cast(type, kind)
            continue
        alike: dict[Any, type] = {tuple: list, Sequence: list, Mapping: dict}
        wire: Any = alike.get(kind, kind)
        if isinstance(wire, type) and issubclass(wire, enum.Enum):
            wire = type(next(iter(wire)).value)
        if wire in by_type or (wire is list and by_tag):
            raise TypeError(f"the members of {members!r} look alike on the wire")
        by_type[wire] = decoder(member)
    if by_tag and list in by_type:
        raise TypeError(f"the members of {members!r} look alike on the wire")
    if float in by_type and int not in by_type:
        by_type[int] = _float

    def build(data: Any) -> Any:
        if by_tag and type(data) is list:
            tag = data[0] if data and type(data[0]) is int else None
            if (known := tagged.get(tag)) is None:
                if tag not in by_tag:
                    raise DecodeError("the tag is of no member of the union")
                known = tagged[tag] = decoder(by_tag[tag])
            return known(data)
        plan = by_type.get(type(data))
        if plan is None and is_array(data):
            plan = next((p for p in by_type.values() if p is _array), None)
        if plan is None and is_tensor(data):
            plan = next((p for p in by_type.values() if p is _tensor), None)
        if plan is None:
            raise _wrong(" or ".join(getattr(m, "__name__", str(m)) for m in members), data)
        return plan(data)

    return build


def _dataclass(kind: type) -> Decoder:
    form = wire_form(kind)
    if form.fillers or form.added:
        return _evolved(kind, form)
    names, tag = form.places, form.tag
    label = kind.__qualname__
    by_name = any(field.kw_only for field in dataclasses.fields(kind)) or names != field_names(kind)
    plain: list[Any] = []  # annotations; what is of exactly that type is taken as it is ...
    plans: list[Decoder] = []  # ... and anything else by its plan
    usual: list[Any] = []  # types with which most come: lists where there are plans, else plain ones
    deeper: list[tuple[int, Decoder]] = []  # the plans of these lists

    def build(data: Any) -> Any:
        if not plans:  # only now, so that a type may refer to itself
            hints = typing.get_type_hints(kind)
            plain.extend(hints[name] for name in names)
            plans.extend(decoder(hint) for hint in plain)
            usual.extend(hint if hint in _PLAIN else list for hint in plain)
            deeper.extend((at, plan) for at, plan in enumerate(plans) if plain[at] not in _PLAIN)
        if type(data) is not list or len(data) != len(names) + 1 or data[0] != tag:
            _check_form(form, label, data)
            data = data[:-1]  # what a later release adds
        parts = data[1:]
        try:
            if list(map(type, parts)) == usual:
                values = parts[:]
                for at, plan in deeper:
                    values[at] = plan(values[at])
            else:
                values = [
                    part if type(part) is exact else plan(part)
                    for part, exact, plan in zip(parts, plain, plans, strict=True)
                ]
        except DecodeError as error:
            raise _named(label, names, plans, parts) from error
        try:
            return kind(**dict(zip(names, values, strict=True))) if by_name else kind(*values)
        except (ValueError, TypeError) as error:
            raise DecodeError(f"{label}: {error}") from error

    return build


def _evolved(kind: type, form: WireForm) -> Decoder:
    """Return the plan for a dataclass whose fields are no longer those of its first release."""
    label = kind.__qualname__
    plans: dict[str, Decoder] = {}

    def build(data: Any) -> Any:
        if not plans:
            hints = typing.get_type_hints(kind)
            plans.update({name: decoder(hints[name]) for name in field_names(kind)})
        if type(data) is not list or len(data) != len(form.places) + 1 or data[0] != form.tag:
            _check_form(form, label, data)
        parts = dict(zip(form.places, data[1:], strict=False))
        if len(data) > len(form.places) + 1:
            parts |= {name: part for name, part in data[-1].items() if name in form.added}
        values = {}
        for name, part in parts.items():
            if name in plans:  # else it is a filler, or was removed here
                try:
                    values[name] = plans[name](part)
                except DecodeError as error:
                    raise DecodeError(f"{label}.{name}: {error}") from error
        try:
            return kind(**values)
        except (ValueError, TypeError) as error:
            raise DecodeError(f"{label}: {error}") from error

    return build


def _check_form(form: WireForm, label: str, data: Any) -> None:
    """Raise DecodeError unless the data is a recorded type's tag and fields, with a dict of added ones behind them."""
    known = form.recorded and type(data) is list and data[:1] == [form.tag] and len(data) == len(form.places) + 2
    if not known or type(data[-1]) is not dict or not all(type(name) is str for name in data[-1]):
        raise _wrong(label, data)


def _named(label: str, names: Sequence[str], plans: Sequence[Decoder], parts: Sequence[Any]) -> DecodeError:
    """Return the error of the first field of a dataclass that cannot be read."""
    for name, plan, part in zip(names, plans, parts, strict=True):
        try:
            plan(part)
        except DecodeError as error:
            return DecodeError(f"{label}.{name}: {error}")
    raise AssertionError("all parts can be read")
