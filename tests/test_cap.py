"""A cap reaches everything that computes: our kernels, torch, MKL and oneDNN, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.select import SETS
from blockwright.tests.cap import CAPS, NAME, VARIABLES
from blockwright.tests.claims import claim
from blockwright.tests.gpu.native_oracle import instruction_sets

PROGRAM = """
from blockwright.tests import cap
cap.limit()
import torch
from blockwright.gpu.select import open_backend
print("torch", torch.backends.cpu.get_cpu_capability())
for dtype in (torch.float32, torch.bfloat16):
    ones = torch.ones(64, 64, dtype=dtype)
    torch.nn.functional.linear(ones, ones)
print(open_backend("native", "bfloat16", 1, cap.CAP).numerics)
"""
SAID = {  # in a line of that library
    "amx": ("torch AVX512", "Vector Extensions 512", "AMX with bfloat16"),
    "avx512_bf16": ("torch AVX512", "Vector Extensions 512", "bfloat16 support"),
    "avx512": ("torch AVX512", "Vector Extensions 512", "isa:Intel AVX-512 with AVX512BW"),
    "avx2": ("torch AVX2", "Vector Extensions 2 (", ""),  # without AVX-512 torch does not ask oneDNN for this
    "generic": ("torch DEFAULT", "SSE4.2", ""),
}


def caps() -> list[Any]:
    """The best and the least of this processor in any run, those between with ``--nightly``."""
    found = instruction_sets("bfloat16")
    ends = {*found[:1], *found[-1:]}
    return [name if name in ends else pytest.param(name, marks=pytest.mark.nightly) for name in found]


@claim("A cap on the instruction set holds for our kernels, torch, oneDNN and MKL", of="code-and-tests")
@pytest.mark.parametrize("cap", caps())
def test_a_cap_holds_for_all_that_computes(cap: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {NAME: cap, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert f"native-{cap}-bfloat16" in done.stdout
    torch, mkl, onednn = SAID[cap]
    assert torch in done.stdout
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text():  # of other makers' processors MKL thinks what it likes
        assert mkl in next(line for line in done.stdout.splitlines() if line.startswith("MKL_VERBOSE oneMKL"))
    assert onednn in done.stdout
    assert ("amx" in done.stdout) == (cap == "amx")


def test_every_set_has_its_cap() -> None:
    assert set(CAPS) == set(SETS) == set(SAID)


@pytest.mark.parametrize("wrong", ["avx3", "AVX2", "avx512bf16"])
def test_a_misspelt_cap_is_refused_in_a_sentence(wrong: str) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", str(Path(__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, NAME: wrong})
    assert done.returncode
    assert f"{NAME} is {wrong!r}; choose one of amx, avx512_bf16, avx512, avx2, generic" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
