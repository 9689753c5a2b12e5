"""Whether weights are finite: a tensor with NaN or infinity makes every answer garbage, whoever shares it.

Looks at the exponent bits, which are all ones in NaN and infinity: as integers such values are the largest of their sign. So
two passes at the speed of the cache are enough, with no copy.
"""

from __future__ import annotations

import numpy as np

_EXPONENT = {"F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}  # the least pattern that is not finite, by type


def is_finite(content: memoryview, dtype: str) -> bool:
    """``content``: whole values; ``dtype`` in safetensors' spelling. Other types count as finite."""
    exponent = _EXPONENT.get(dtype)
    if exponent is None or not content.nbytes:
        return True
    size = 4 if dtype == "F32" else 2
    values = np.frombuffer(content, np.dtype(f"<i{size}"))
    sign = 1 << (8 * size - 1)
    return bool(values.max() < exponent and values.view(np.dtype(f"<u{size}")).max() < sign + exponent)
