"""Out-of-band buffers: numpy arrays, torch tensors and bytes over 256 travel as frames of their own.

Owns the MessagePack extension types that stand for them in a body (an index into the frames, for arrays with dtype and
shape) and the checks when they are put back. Imports numpy only when
an array is at hand, and torch never: if it is not imported there are no tensors, and one that arrives is refused.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from ...transport.wire import MAX_FRAMES, Buffer
from .errors import DecodeError, EncodeError

INLINE_BYTES = 256
BYTES_EXT = 1
ARRAY_EXT = 2
TENSOR_EXT = 3
_INDEX = struct.Struct("<H")
_KINDS = "biufc"  # bool, integers, floats, complex: nothing that holds objects or text
_TENSORS = frozenset(
    ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16")
) | frozenset(("float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"))
_MAX_DIMENSIONS = 16


class Sink:
    """Buffers of a message being encoded; ``typed`` once it holds a dataclass (it looks like plain data)."""

    __slots__ = ("buffers", "typed")

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.typed = False

    def add_bytes(self, value: bytes | bytearray | memoryview) -> Any:
        """Return the stand-in for ``value`` in the body: itself when small."""
        if isinstance(value, memoryview):
            value = value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes()
        if len(value) <= INLINE_BYTES:
            return bytes(value)
        # A bytearray may change or be resized before libzmq has read it.
        return msgpack.ExtType(BYTES_EXT, _INDEX.pack(self._add(bytes(value) if isinstance(value, bytearray) else value)))

    def add_array(self, array: Any) -> Any:
        import numpy as np

        if isinstance(array, np.ma.MaskedArray):
            raise EncodeError("a masked array cannot travel with its mask; send its data and its mask")
        if array.dtype.kind not in _KINDS or array.ndim > _MAX_DIMENSIONS:
            raise EncodeError(
                f"an array of dtype {array.dtype} and {array.ndim} dimensions cannot travel; send plain numbers"
            )
        flat: Any = np.ascontiguousarray(array)
        index = self._add(memoryview(flat).cast("B") if flat.size else b"")
        return msgpack.ExtType(ARRAY_EXT, msgpack.packb([array.dtype.str, list(array.shape), index]))

    def add_tensor(self, tensor: Any) -> Any:
        torch = sys.modules["torch"]
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _TENSORS or tensor.layout != torch.strided or tensor.ndim > _MAX_DIMENSIONS:
            raise EncodeError(f"a tensor of {tensor.dtype}, {tensor.layout}, {tensor.ndim} dimensions cannot travel")
        if tensor.is_meta:
            raise EncodeError("a tensor on the meta device holds no data and cannot travel; send its shape")
        # Conjugates and negatives may be views that only promise their values.
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
        index = self._add(memoryview(flat.numpy()) if flat.numel() else b"")
        return msgpack.ExtType(TENSOR_EXT, msgpack.packb([name, list(tensor.shape), index]))

    def _add(self, buffer: Buffer) -> int:
        if len(self.buffers) >= MAX_FRAMES - 4:
            raise EncodeError(f"more than {MAX_FRAMES - 4} buffers in one message; join small ones")
        self.buffers.append(buffer)
        return len(self.buffers) - 1


def is_array(value: Any) -> bool:
    """Return True if ``value`` is a numpy array, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_tensor(value: Any) -> bool:
    """Return True if ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def ext_hook(buffers: Sequence[memoryview]) -> Callable[[int, bytes], Any]:
    """Put buffers back in place, as the hook of ``msgpack.unpackb``. Raises DecodeError for anything odd."""

    def pick(index: object) -> memoryview:
        if type(index) is not int or not 0 <= index < len(buffers):
            raise DecodeError(f"buffer {index!r} of {len(buffers)} is named")
        return buffers[index]

    def restore(code: int, data: bytes) -> Any:
        if code == BYTES_EXT and len(data) == _INDEX.size:
            return bytes(pick(_INDEX.unpack(data)[0]))
        if code == ARRAY_EXT:
            return _array(data, pick)
        if code == TENSOR_EXT:
            return _tensor(data, pick)
        raise DecodeError(f"unknown extension type {code} of {len(data)} bytes")

    return restore


def _array(data: bytes, pick: Callable[[object], memoryview]) -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise DecodeError("an array came to a process that has no numpy; install it there, or send a list") from error
    code, shape, index = _described(data)
    if len(code) > 4 or len(code) < 3 or code[1] not in _KINDS or not code[2:].isdigit():
        raise DecodeError(f"dtype {code!r} is not allowed")
    try:
        dtype = np.dtype(code)
    except TypeError as error:
        raise DecodeError(f"dtype {code!r} is not known") from error
    buffer = pick(index)
    _check_size(shape, dtype.itemsize, buffer)
    array = np.frombuffer(buffer, dtype).reshape(shape)
    array.flags.writeable = False  # shared with the message; arguments are immutable
    return array


def _tensor(data: bytes, pick: Callable[[object], memoryview]) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise DecodeError("a tensor came to a process that has not imported torch; import it there, or send an array")
    name, shape, index = _described(data)
    dtype = getattr(torch, name, None) if name in _TENSORS else None
    if dtype is None:
        raise DecodeError(f"dtype {name!r} is not allowed")
    buffer = pick(index)
    _check_size(shape, dtype.itemsize, buffer)
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    # Tensors cannot be read-only, and torch takes no read-only memory: a copy.
    return torch.frombuffer(bytearray(buffer), dtype=dtype).reshape(shape)


def _described(data: bytes) -> tuple[str, list[int], object]:
    """Return (dtype, shape, index) of an array or tensor."""
    described = msgpack.unpackb(data, max_array_len=_MAX_DIMENSIONS, max_ext_len=0)
    if type(described) is not list or len(described) != 3:
        raise DecodeError("an array is described by dtype, shape and buffer")
    code, shape, index = described
    if type(code) is not str or len(code) > 16:
        raise DecodeError(f"dtype {str(code)[:80]!r} is not allowed")
    if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
        raise DecodeError(f"shape {str(shape)[:80]} is not allowed")
    return code, shape, index


def _check_size(shape: list[int], each: int, buffer: memoryview) -> None:
    if math.prod(shape) * each != len(buffer):
        raise DecodeError(f"{shape} items of {each} bytes do not have {len(buffer)} bytes")
