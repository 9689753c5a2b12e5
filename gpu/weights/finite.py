"""Whether weights can be computed with: a tensor with NaN or infinity makes every answer garbage, whoever shares it. So do
values of ``BEYOND`` and more, although float32 holds them: the norm after them squares what they make of any input.

Looks at the bits without the sign: as integers they have the order of the values, and NaN and infinity are the largest. So
two passes at the speed of the cache are enough, with no copy.
"""

from __future__ import annotations

import numpy as np

BEYOND = 2.0**64  # its square is more than float32 holds
_PATTERN = {"F32": 0x5F800000, "BF16": 0x5F80, "F16": 0x7C00}  # the least that is refused, by type: float16 ends before


def is_finite(content: memoryview, dtype: str) -> bool:
    """``content``: whole values; ``dtype`` in safetensors' spelling. Other types count as finite."""
    least = _PATTERN.get(dtype)
    if least is None or not content.nbytes:
        return True
    size = 4 if dtype == "F32" else 2
    values = np.frombuffer(content, np.dtype(f"<i{size}"))
    sign = 1 << (8 * size - 1)
    return bool(values.max() < least and values.view(np.dtype(f"<u{size}")).max() < sign + least)
