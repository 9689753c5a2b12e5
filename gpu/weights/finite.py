"""Finiteness check of weights: NaN, infinity and too large values cannot be computed with.

A tensor with NaN or infinity makes every answer of every model that shares it garbage. So do values of ``BEYOND`` and more,
although float32 holds them: the norm after them squares their product with any input.

Looks at the bits without the sign: as integers they have the order of the values, and NaN and infinity are the largest. So
two passes at the speed of the cache are enough, with no copy.
"""

from __future__ import annotations

import numpy as np

BEYOND = 2.0**64  # its square is more than float32 holds
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def is_finite(content: memoryview, dtype: str) -> bool:
    """Return whether all values are finite and small enough. Other types count as finite.

    ``content`` has whole values; ``dtype`` is as safetensors spells it.
    """
    return largest(content, dtype) < BEYOND  # False for NaN, too


def largest(content: memoryview, dtype: str) -> float:
    """Return the largest absolute value, or NaN if there is one; 0.0 for no values and for other types."""
    size = _BYTES.get(dtype)
    if size is None or not content.nbytes:
        return 0.0
    values = np.frombuffer(content, np.dtype(f"<i{size}"))
    unsigned = int(values.view(np.dtype(f"<u{size}")).max())
    bits = max(int(values.max()), unsigned - (1 << (8 * size - 1)))
    if dtype == "F16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << (16 if dtype == "BF16" else 0)).view(np.float32))
