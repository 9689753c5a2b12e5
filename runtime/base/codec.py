"""Serialization: values to MessagePack and back, checked against annotations. Never pickle.

Encoding follows the value: a dataclass becomes ``[tag, field, ...]``, the tag being 32 bits of a hash of its name and field
names, so that unions are told apart and two versions of a type are not mistaken for each other. Decoding follows the
annotation, strictly: exact types (an int is taken where a float is declared), known fields, limits on sizes and depth.
Plans for each annotation are compiled once. Enums travel as their values, large bytes and arrays by ``buffers``.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

import msgpack

from blockwright.runtime.base.buffers import INLINE_BYTES, Sink, ext_hook, is_array, is_tensor
from blockwright.runtime.base.errors import DecodeError, EncodeError
from blockwright.transport.wire import MAX_BODY, Buffer

Decoder = Callable[[Any], Any]
MAX_ITEMS = 1 << 20  # of all lists and dicts of a message together
MAX_CONTAINERS = 1 << 17  # lists and dicts of a message
_HEADS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])  # bytes with which dicts and lists may begin
_PLAIN = frozenset((type(None), bool, int, float, str))
_forms: dict[type, tuple[int, Callable[[Any], tuple[Any, ...]]]] = {}  # dataclass -> its tag, the values of its fields
_PLAIN_KEYS = frozenset((bool, int, str))
_pack = msgpack.Packer().pack  # one for all: it holds the interpreter lock throughout, and resets itself after an error


def pack(value: Any) -> bytes:
    """MessagePack of what ``encode`` returned. Raises EncodeError."""
    try:
        body: bytes = _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"a value cannot travel: {error}") from error
    if len(body) > MAX_BODY:
        raise EncodeError(f"a message of {len(body)} bytes exceeds {MAX_BODY}; send large data as bytes or arrays")
    if len(body) > MAX_CONTAINERS and _may_be_many(body):
        try:  # as the receiver will: it would drop the message, and whoever waits for the answer would wait in vain
            msgpack.unpackb(body, ext_hook=lambda code, data: None, **_Count().hooks, **_LIMITS)
        except ValueError as error:  # DecodeError is one
            raise EncodeError(f"{error}; send large data as bytes or arrays") from error
    return body


_LIMITS: dict[str, Any] = {
    "strict_map_key": False,
    "max_array_len": MAX_ITEMS,
    "max_map_len": MAX_ITEMS,
    "max_str_len": MAX_BODY,
    "max_bin_len": MAX_BODY,
    "max_ext_len": 1024,
}
_unpack = partial(msgpack.unpackb, ext_hook=ext_hook(()), **_LIMITS)


def unpack(body: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
    """Plain data of a message, buffers put back. Raises DecodeError for whatever is wrong with it.

    The objects are bounded, not only the bytes: an empty list is one byte on the wire and 64 in memory. They are counted
    where the bytes could be too many, while they are built.
    """
    try:
        if len(body) > MAX_CONTAINERS and _may_be_many(body):
            return msgpack.unpackb(body, ext_hook=ext_hook(buffers), **_Count().hooks, **_LIMITS)
        return msgpack.unpackb(body, ext_hook=ext_hook(buffers), **_LIMITS) if buffers else _unpack(body)
    except DecodeError:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"not a valid message: {type(error).__name__} {error}") from error


def _may_be_many(body: Buffer) -> bool:
    if len(body) > MAX_BODY:
        raise DecodeError(f"a message of {len(body)} bytes exceeds {MAX_BODY}")
    # Of random bytes one in seven looks like a head; in text, floats and small numbers there are few.
    return len(body) > MAX_ITEMS or len(body) - len(bytes(body).translate(None, _HEADS)) > MAX_CONTAINERS


class _Count:
    """Lists and dicts of one message, and what they hold, while they are built."""

    __slots__ = ("containers", "items")

    def __init__(self) -> None:
        self.containers = self.items = 0

    @property
    def hooks(self) -> dict[str, Callable[[Any], Any]]:
        return {"list_hook": self.container, "object_hook": self.container}

    def container(self, value: Any) -> Any:
        self.containers += 1
        self.items += len(value)
        if self.containers > MAX_CONTAINERS or self.items > MAX_ITEMS:
            raise DecodeError(f"a message holds more than {MAX_CONTAINERS} lists and dicts, or {MAX_ITEMS} items")
        return value


def bare(value: Any) -> bool:
    """Whether it is its own encoding at first sight: most arguments and answers are, and need no ``Sink``."""
    kind = type(value)
    return kind in _PLAIN or (kind is bytes and len(value) <= INLINE_BYTES)


def encode(value: Any, sink: Sink) -> Any:
    """Plain data for ``pack``; large parts go to ``sink``. Raises EncodeError, naming the type that cannot travel."""
    kind = type(value)
    if kind in _PLAIN or (kind is bytes and len(value) <= INLINE_BYTES):
        return value
    try:
        if (form := _forms.get(kind)) is not None:
            tag, fields = form
            sink.typed = True
            return [tag, *[part if type(part) in _PLAIN else encode(part, sink) for part in fields(value)]]
        if kind in (list, tuple):
            kinds = set(map(type, value))
            if kinds <= _PLAIN or (kinds == {bytes} and max(map(len, value)) <= INLINE_BYTES):
                return value
            return [part if type(part) in _PLAIN else encode(part, sink) for part in value]
        if kind is dict:
            return {_encode_key(key): encode(item, sink) for key, item in value.items()}
        if kind in (bytes, bytearray, memoryview):
            return sink.add_bytes(value)
        if isinstance(value, enum.Enum):
            return encode(value.value, sink)
        if dataclasses.is_dataclass(kind):
            _forms[kind] = schema_tag(kind), _getter(field_names(kind))
            return encode(value, sink)
        if is_array(value):
            return sink.add_array(value)
        if is_tensor(value):
            return sink.add_tensor(value)
    except RecursionError as error:
        raise EncodeError("a value that is nested too deeply, or holds itself, cannot travel") from error
    raise EncodeError(f"{kind.__module__}.{kind.__qualname__} cannot travel; send plain data, dataclasses, bytes or arrays")


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _encode_key(key: Any) -> Any:
    if isinstance(key, enum.Enum):
        key = key.value
    if type(key) not in _PLAIN_KEYS and not (type(key) is bytes and len(key) <= 256):
        raise EncodeError(f"{type(key).__qualname__} cannot be a key of a dict that travels; use str, int or short bytes")
    return key


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Fields that travel, in order."""
    return tuple(f.name for f in dataclasses.fields(kind) if f.init)


@cache
def schema_tag(kind: type) -> int:
    """32 bits that identify a dataclass by its name and field names."""
    text = f"{kind.__qualname__}({','.join(field_names(kind))})"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


def decode(annotation: Any, data: Any) -> Any:
    """``data`` (from ``unpack``) as a value of the annotated type. Raises DecodeError, naming the field."""
    try:
        return decoder(annotation)(data)
    except RecursionError as error:
        raise DecodeError("a value is nested too deeply") from error


def received(what: str, target: object, endpoint: str, typed: bool, value: Any, annotation: Any) -> Any:
    """An answer or an item as its reader wants it. ``annotation`` None: as plain data; ``typed``: it holds dataclasses.

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
    """The compiled plan for an annotation. Raises TypeError for one that cannot travel (the declaration is at fault)."""
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
    def build(data: Any) -> Any:
        if type(data) is not dict:
            raise _wrong("dict", data)
        keys, values = decoder(key), decoder(value)
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
    """Members must be told apart by what is on the wire: plain types by type, dataclasses by tag, one container at most."""
    by_type: dict[type, Decoder] = {}
    by_tag: dict[int, type] = {}
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
            known = by_tag.get(data[0]) if data and type(data[0]) is int else None
            if known is None:
                raise DecodeError("the tag is of no member of the union")
            return decoder(known)(data)
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
    names, tag, label = field_names(kind), schema_tag(kind), kind.__qualname__
    by_name = any(field.kw_only for field in dataclasses.fields(kind))
    plain: list[Any] = []  # annotations; what is of exactly that type is taken as it is ...
    plans: list[Decoder] = []  # ... and anything else by its plan

    def build(data: Any) -> Any:
        if not plans:  # only now, so that a type may refer to itself
            hints = typing.get_type_hints(kind)
            plain.extend(hints[name] for name in names)
            plans.extend(decoder(hint) for hint in plain)
        if type(data) is not list or len(data) != len(names) + 1 or data[0] != tag:
            raise _wrong(label, data)
        parts = data[1:]
        try:
            values = [
                part if type(part) is exact else plan(part) for part, exact, plan in zip(parts, plain, plans, strict=True)
            ]
        except DecodeError as error:
            raise _named(label, names, plans, parts) from error
        try:
            return kind(**dict(zip(names, values, strict=True))) if by_name else kind(*values)
        except (ValueError, TypeError) as error:
            raise DecodeError(f"{label}: {error}") from error

    return build


def _named(label: str, names: Sequence[str], plans: Sequence[Decoder], parts: Sequence[Any]) -> DecodeError:
    """Of a dataclass's parts the first that cannot be read."""
    for name, plan, part in zip(names, plans, parts, strict=True):
        try:
            plan(part)
        except DecodeError as error:
            return DecodeError(f"{label}.{name}: {error}")
    raise AssertionError("all parts can be read")
