"""Back ends and instruction sets for ``parametrize``, and the part of them that every run plays.

``make nightly`` plays all of them. ``make caps`` plays each instruction set as the best one of a processor.
"""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.gpu.cpu.native.backend import NativeBackend
from blockwright.gpu.cpu.reference.backend import TorchBackend
from blockwright.gpu.cuda.platforms import open_mirror

from .native_oracle import instruction_sets

_NAMES = ["torch", "native", "cuda-mirror"]
BACKENDS = pytest.mark.parametrize("make", [TorchBackend, NativeBackend, open_mirror], ids=_NAMES)
# For a list of architectures or forms: the reference back end computes a few of them in tests with BACKENDS.
NATIVE = pytest.mark.parametrize(
    "make",
    [
        pytest.param(TorchBackend, marks=pytest.mark.nightly),
        NativeBackend,
        pytest.param(open_mirror, marks=pytest.mark.nightly),
    ],
    ids=_NAMES,
)

CUTS = pytest.mark.parametrize(
    "cuts", [pytest.param((), marks=pytest.mark.nightly), (1, 4)], ids=["one-run", "three-runs"]
)  # of a chain into runs


def each_set() -> list[Any]:
    """Return (dtype, instruction set) for ``parametrize``: of each type the best set in any run, the others nightly."""
    found = list[Any]()
    for dtype in ("float32", "bfloat16"):
        for place, name in enumerate(instruction_sets(dtype)):
            found.append(pytest.param(dtype, name, marks=[pytest.mark.nightly] if place else []))
    return found


EACH_SET = pytest.mark.parametrize(("dtype", "instruction_set"), each_set())
