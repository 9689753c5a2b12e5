"""Triton's interpreter made fit for tests: bfloat16 and products as on a card, and no patching anew for each inner call.

As it comes, bfloat16 is stored as uint16: products and arithmetic compute with the bits as integers, and conversions cut
instead of rounding. numpy's matmul sums a row differently depending on where it stands in the matrix. And each call of a
function within a kernel (also of tl.sum, tl.zeros) looks through triton.language for 0.3 ms; integers are computed twice to
see them overflow, and types are found anew for every operation. Without these a program takes a third of the time.

``install`` needs TRITON_INTERPRET=1 from before triton was imported, so what uses it has a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as it

# Arithmetic that would use the bits of bfloat16 as integers.
REFUSED = (
    "create_fadd", "create_fsub", "create_fmul", "create_fdiv", "create_maxnumf", "create_minnumf", "create_maximumf",
    "create_minimumf",
    "create_fma", "create_fcmpOLT", "create_fcmpOGT", "create_fcmpOLE", "create_fcmpOGE",
)  # fmt: skip


_scalar = cache(it._get_np_dtype)


def _stored(dtype: Any) -> Any:
    """Return the type of numpy's that holds a type."""
    scalar = dtype.scalar
    return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else _scalar(scalar)


def _wide(data: Any, dtype: Any) -> Any:
    if dtype.scalar == tl.bfloat16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data


def _narrow(wide: Any) -> Any:
    """Round float32 to the bits of bfloat16, to nearest even."""
    bits = np.ascontiguousarray(wide, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def _cast(self: Any, src: Any, dst: Any) -> Any:
    data, to = _wide(src.data, src.dtype), dst.scalar
    if to == tl.bfloat16:
        return it.TensorHandle(src.data if src.dtype.scalar == to else _narrow(data.astype(np.float32)), to)
    return it.TensorHandle(data.astype(it._get_np_dtype(dst)), to)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """Sum in the order of the inner index, whatever the shape and wherever the row."""
    x = _wide(a.data, a.dtype)
    y = _wide(b.data, b.dtype)
    total = d.data.copy()
    y = np.ascontiguousarray(y, dtype=total.dtype)
    term = np.empty_like(total)
    for k, column in enumerate(np.ascontiguousarray(x.T, dtype=total.dtype)):
        np.multiply(column[:, None], y[k], out=term)
        total += term
    return it.TensorHandle(total, d.dtype.scalar)


def _refusing(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, lhs: Any, rhs: Any, *args: Any) -> Any:
        assert lhs.dtype.scalar != tl.bfloat16, f"{name} of bfloat16: convert to float32 first, as the interpreter cannot"
        return op(self, lhs, rhs, *args)

    return checked


def install() -> None:
    """Change the interpreter of this process."""
    builder = it.InterpreterBuilder
    builder.cast_impl, builder.create_dot = _cast, _dot
    it.interpreter_builder.options = replace(it.interpreter_builder.options, sanitize_overflow=False)
    it._get_np_dtype = _stored
    it._validate_np_data_size = lambda array, dtype: True
    TritonSemantic.computation_type_impl = cache(TritonSemantic.computation_type_impl)
    for name in REFUSED:
        setattr(builder, name, _refusing(name, getattr(builder, name)))
    patch = it._patch_lang
    inside = list[Any]()
    seen = set[str]()

    def once(fn: Any) -> Any:
        if inside and fn.__module__ in seen:
            return None
        seen.add(fn.__module__)
        return patch(fn)

    call = it.GridExecutor.__call__

    def outer(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(self)
        seen.clear()
        try:
            with np.errstate(all="ignore"):  # a card says nothing of infinities either
                return call(self, *args, **kwargs)
        finally:
            inside.pop()

    it._patch_lang, it.GridExecutor.__call__ = once, outer
