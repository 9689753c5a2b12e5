"""ctypes bindings of the compiled CPU kernels: finds the library, declares its functions and its records.

Owns the C ABI alone (``kernels/native.h`` mirrors it). Never touches tensors. A call through ``CDLL`` releases the GIL.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from ...errors import BackendError

LIBRARY = Path(__file__).parents[1] / "kernels" / "_cpu.so"
EMBEDDING, ATTENTION, MLP, HEAD = range(4)
RMS, LAYER = range(2)
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "gelu_new": 2, "gelu_fast": 2}
BOTTLENECKS = ACTIVATIONS | {"relu": 3}
READS = {"output": 0, "sum": 1, "input": 2}  # input of a bottleneck
HALVES, NEIGHBOURS = range(2)
KEEP, JOIN = 1, 2

ERRORS = {
    1: "the token counts of the batch do not add up to the rows of its hidden states",
    2: "a table row of the batch is outside the tables",
    3: "a position of the batch is outside the tables",
    4: "a token id of the batch is outside the vocabulary",
    5: "the batch has more tokens than were reserved",
    6: "the groups of deltas do not follow each other in the batch",
}

_INT = ctypes.c_int32
_LONG = ctypes.c_int64
_PTR = ctypes.c_void_p


class ComponentRecord(ctypes.Structure):
    """``bw_comp`` of native.h, in its order."""

    _fields_ = [
        *((name, _INT) for name in ("kind", "width", "heads", "kv_heads", "head_dim", "window")),
        *((name, _INT) for name in ("kv_layer", "page_size", "inner", "rotary", "rope", "qk_whole", "activation", "gated")),
        *((name, _INT) for name in ("norm_kind", "side", "adapted")),
        *((name, ctypes.c_float) for name in ("eps", "scale", "softcap", "factor")),
        ("slot_bytes", _LONG),
        *((name, _PTR) for name in ("w0", "w1", "w2", "w_out", "b0", "b1", "b2", "b_out")),
        *((name, _PTR) for name in ("norm", "norm_bias", "post_norm", "q_norm", "k_norm")),
        *((name, _PTR) for name in ("cos", "sin", "arena")),
    ]


class DeltaRecord(ctypes.Structure):
    """``bw_delta`` of native.h, in its order."""

    _fields_ = [
        ("a", _PTR * 2),
        ("scale", _PTR * 2),
        ("b", _PTR * 4),
        ("shift", _PTR * 4),
        *((name, _PTR) for name in ("down", "up", "down_bias", "up_bias", "filled")),
        ("columns", _INT * 2),
        ("units", _INT * 4),
        ("from_", _INT * 4),
        *((name, _INT) for name in ("virtual_", "bottleneck", "up_units", "activation", "reads")),
        ("bottleneck_scale", ctypes.c_float),
    ]


class GroupRecord(ctypes.Structure):
    """``bw_group`` of native.h."""

    _fields_ = [("first", _INT), ("last", _INT), ("deltas", _PTR), ("virtual_", _INT)]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "bw_component_bytes": (_INT, []),
    "bw_delta_bytes": (_INT, []),
    "bw_create": (_PTR, [_INT, _INT, ctypes.c_char_p]),
    "bw_destroy": (None, [_PTR]),
    "bw_name": (ctypes.c_char_p, [_PTR]),
    "bw_pack": (None, [_PTR, _PTR, _LONG, _LONG, _INT, _INT]),
    "bw_tables": (_INT, [_PTR, _PTR, _PTR, *[_INT] * 5]),
    "bw_reserve": (_INT, [_PTR, _PTR, _INT]),
    "bw_reserve_low": (_INT, [_PTR, _INT]),
    "bw_settle": (None, [_PTR]),
    "bw_progress": (ctypes.c_uint64, [_PTR]),
    "bw_delay": (None, [_PTR, _INT, _INT]),
    "bw_forward": (_INT, [_PTR, _PTR, _INT, _PTR, _PTR, _PTR, _INT, _PTR, _INT, _PTR, _INT]),
    "bw_logits": (_INT, [_PTR, _PTR, _PTR, _INT, _PTR, _PTR, _INT]),
    "bw_argmax": (None, [_PTR, _PTR, _INT, _INT, _PTR, _INT, _PTR, _PTR]),
    "bw_allowed": (_INT, [_PTR, _PTR, _INT, _PTR, _PTR, _PTR]),
}


@cache
def library() -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises ``BackendError`` if it was not built or is of another version.
    """
    path = LIBRARY
    if not path.exists():
        raise BackendError("the native kernels were not built; install gcc and install the package again")
    handle = ctypes.CDLL(str(path))
    other = f"{path.name} was built from other sources than this package; install the package again"
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(handle, name)
        except AttributeError:
            raise BackendError(other) from None
        function.restype, function.argtypes = result, arguments
    sizes = (handle.bw_component_bytes(), handle.bw_delta_bytes())
    if sizes != (ctypes.sizeof(ComponentRecord), ctypes.sizeof(DeltaRecord)):
        raise BackendError(other)
    return handle
