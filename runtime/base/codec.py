"""Serialization: values to MessagePack and back, checked against annotations. Never pickle.

Encoding follows the value: a dataclass becomes ``[tag, field, ...]`` as ``schema.py`` has it, so that members of a union
differ and two types are not mistaken for each other. Enums travel as their values, large bytes and arrays by ``buffers``.
What came is plain data of bounded size and depth, of which ``decoding.py`` makes values.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack

from ...transport.wire import MAX_BODY, Buffer
from .buffers import INLINE_BYTES, Sink, ext_hook, is_array, is_tensor
from .errors import DecodeError, EncodeError
from .schema import Values, schema_tag, wire_values

MAX_ITEMS = 1 << 20  # of all lists and dicts of a message together
MAX_CONTAINERS = 1 << 17  # lists and dicts of a message
_HEADS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])  # bytes with which dicts and lists may begin
_PLAIN = frozenset((type(None), bool, int, float, str))
_forms: dict[type, tuple[int, Values]] = {}  # dataclass -> its tag, the values of its fields
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
        try:  # as the receiver will: it would drop the message, and the caller would wait in vain
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
    """Return True if the value is plainly its own encoding.

    Most arguments and answers are, and need no ``Sink``.
    """
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
            _forms[kind] = schema_tag(kind), wire_values(kind)
            return encode(value, sink)
        if is_array(value):
            return sink.add_array(value)
        if is_tensor(value):
            return sink.add_tensor(value)
    except RecursionError as error:
        raise EncodeError("a value that is nested too deeply, or holds itself, cannot travel") from error
    raise EncodeError(f"{kind.__module__}.{kind.__qualname__} cannot travel; send plain data, dataclasses, bytes or arrays")


def _encode_key(key: Any) -> Any:
    if isinstance(key, enum.Enum):
        key = key.value
    if type(key) not in _PLAIN_KEYS and not (type(key) is bytes and len(key) <= 256):
        raise EncodeError(f"{type(key).__qualname__} cannot be a key of a dict that travels; use str, int or short bytes")
    return key
