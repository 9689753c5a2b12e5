"""The environment variable BLOCKWRIGHT_CAP: tests take this processor for one whose best instruction set is that one.

``make test CAP=avx2`` sets it. Our kernels follow their setting; oneDNN, MKL and torch, which compute what tests
compare with, read variables of their own when they are loaded, in child processes too.
"""

from __future__ import annotations

import os
from typing import Any

NAME = "BLOCKWRIGHT_CAP"
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY")
CAPS = {
    "amx": ("AVX512_CORE_AMX", "AVX512", "avx512"),
    "avx512_bf16": ("AVX512_CORE_BF16", "AVX512", "avx512"),
    "avx512": ("AVX512_CORE", "AVX512", "avx512"),
    "avx2": ("AVX2", "AVX2", "avx2"),
    "generic": ("SSE41", "SSE4_2", "default"),
}
CAP = os.environ.get(NAME, "")
SERVED: dict[str, Any] = {"instruction_set": CAP} if CAP else {}  # settings of a server that is capped, too


def limit() -> None:
    """Before torch is imported. Ends the process for a cap that there is not."""
    if CAP and CAP not in CAPS:
        raise SystemExit(f"{NAME} is {CAP!r}; choose one of {', '.join(CAPS)} (make test CAP=avx2)")
    if CAP:
        os.environ.update(zip(VARIABLES, CAPS[CAP], strict=True))
