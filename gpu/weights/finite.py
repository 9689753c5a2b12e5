"""Whether weights can be computed with: a tensor with NaN or infinity makes every answer garbage, whoever shares it. So do
values of ``BEYOND`` and more, although float32 holds them: the norm after them squares what they make of any input.

Looks at the bits without the sign: as integers they have the order of the values, and NaN and infinity are the largest. So
two passes at the speed of the cache are enough, with no copy.
"""

from __future__ import annotations

import numpy as np

BEYOND = 2.0**64  # its square is more than float32 holds
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def is_finite(content: memoryview, dtype: str) -> bool:
    """``content``: whole values; ``dtype`` in safetensors' spelling. Other types count as finite."""
    return largest(content, dtype) < BEYOND  # not so for NaN


def largest(content: memoryview, dtype: str) -> float:
    """The largest value without its sign, or NaN where there is one; 0.0 where there is none, and of other types."""
    size = _BYTES.get(dtype)
    if size is None or not content.nbytes:
        return 0.0
    values = np.frombuffer(content, np.dtype(f"<i{size}"))
    unsigned = int(values.view(np.dtype(f"<u{size}")).max())
    bits = max(int(values.max()), unsigned - (1 << (8 * size - 1)))
    if dtype == "F16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << (16 if dtype == "BF16" else 0)).view(np.float32))
