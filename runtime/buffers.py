"""Large values beside the message: numpy arrays, and bytes over 256, travel as frames of their own.

Owns the two MessagePack extension types that stand for them in a body (an index into the frames, for arrays with dtype and
shape) and the checks when they are put back. Imports numpy only when an array is at hand.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from blockwright.runtime.errors import DecodeError, EncodeError
from blockwright.transport.wire import MAX_FRAMES, Buffer

INLINE_BYTES = 256
BYTES_EXT, ARRAY_EXT = 1, 2
_INDEX = struct.Struct("<H")
_KINDS = "biufc"  # bool, integers, floats, complex: nothing that holds objects or text
_MAX_DIMENSIONS = 16


class Sink:
    """Buffers of a message being encoded; ``typed`` once it holds a dataclass (which plain data cannot be told from)."""

    __slots__ = ("buffers", "typed")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.typed = False

    def add_bytes(self, value: bytes | bytearray | memoryview) -> Any:
        """What stands for ``value`` in the body: itself when small."""
        if isinstance(value, memoryview):
            value = value.cast("B") if value.contiguous else bytes(value)
        if len(value) <= INLINE_BYTES:
            return bytes(value)
        # A bytearray may change or be resized before libzmq has read it.
        return msgpack.ExtType(BYTES_EXT, _INDEX.pack(self._add(bytes(value) if isinstance(value, bytearray) else value)))

    def add_array(self, array: Any) -> Any:
        import numpy as np

        if array.dtype.kind not in _KINDS or array.ndim > _MAX_DIMENSIONS:
            raise EncodeError(
                f"an array of dtype {array.dtype} and {array.ndim} dimensions cannot travel; send plain numbers"
            )
        flat: Any = np.ascontiguousarray(array)
        index = self._add(memoryview(flat).cast("B") if flat.size else b"")
        return msgpack.ExtType(ARRAY_EXT, msgpack.packb([array.dtype.str, list(array.shape), index]))

    def _add(self, buffer: Buffer) -> int:
        if len(self.buffers) >= MAX_FRAMES - 4:
            raise EncodeError(f"more than {MAX_FRAMES - 4} buffers in one message; join small ones")
        self.buffers.append(buffer)
        return len(self.buffers) - 1


def is_array(value: Any) -> bool:
    """Whether ``value`` is a numpy array, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def ext_hook(buffers: Sequence[memoryview]) -> Callable[[int, bytes], Any]:
    """For ``msgpack.unpackb``: puts buffers back where they belong. Raises DecodeError for anything odd."""

    def pick(index: object) -> memoryview:
        if type(index) is not int or not 0 <= index < len(buffers):
            raise DecodeError(f"buffer {index!r} of {len(buffers)} is named")
        return buffers[index]

    def restore(code: int, data: bytes) -> Any:
        if code == BYTES_EXT and len(data) == _INDEX.size:
            return bytes(pick(_INDEX.unpack(data)[0]))
        if code == ARRAY_EXT:
            return _array(data, pick)
        raise DecodeError(f"unknown extension type {code} of {len(data)} bytes")

    return restore


def _array(data: bytes, pick: Callable[[object], memoryview]) -> Any:
    import numpy as np

    described = msgpack.unpackb(data, max_array_len=_MAX_DIMENSIONS, max_ext_len=0)
    if type(described) is not list or len(described) != 3:
        raise DecodeError("an array is described by dtype, shape and buffer")
    code, shape, index = described
    if type(code) is not str or len(code) > 4 or len(code) < 3 or code[1] not in _KINDS or not code[2:].isdigit():
        raise DecodeError(f"dtype {code!r} is not allowed")
    if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
        raise DecodeError(f"shape {shape!r} is not allowed")
    dtype, buffer = np.dtype(code), pick(index)
    if math.prod(shape) * dtype.itemsize != len(buffer):
        raise DecodeError(f"an array of shape {shape} and {dtype} does not have {len(buffer)} bytes")
    array = np.frombuffer(buffer, dtype).reshape(shape)
    array.flags.writeable = False  # shared with the message; arguments are immutable
    return array
