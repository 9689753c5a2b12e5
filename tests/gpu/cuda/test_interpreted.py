"""Runs tests in processes in which Triton interprets: of the kernels, and of every back end with the kernels in it.

Few processes, for each takes five seconds to start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.claims import claim

KERNELS = Path(__file__).parent / "kernels"
SUITES = Path(__file__).parents[1]
LONGEST = KERNELS / "test_attention.py"
OTHERS = sorted(set(KERNELS.glob("test_*.py")) - {LONGEST})


@claim("The CUDA kernels, interpreted, are right in float32 and bfloat16, and a row's bits are its own", of="numerics")
@pytest.mark.parametrize("files", [[LONGEST], OTHERS], ids=["attention", "others"])
def test_kernels(files: list[Path], request: pytest.FixtureRequest) -> None:
    interpreted([*map(str, files)], request)


@claim("The suites of all back ends run through the CUDA kernels, interpreted", of="numerics")
def test_suites_of_every_back_end(request: pytest.FixtureRequest) -> None:
    """Conformance and the law of bits, with the shortest sequences; nightly more of them."""
    daily = "lie_apart" if not request.config.getoption("--nightly") else "lie_apart or over_two or batches or cutting"
    bits = "no_device and llama" + ("" if request.config.getoption("--nightly") else " and float32")
    chosen = f"(cuda-interpreted and ({daily})) or ({bits})"
    interpreted([str(SUITES / "test_conformance.py"), str(SUITES / "test_bits.py"), "-k", chosen], request)


def interpreted(words: list[str], request: pytest.FixtureRequest) -> None:
    nightly = ["--nightly"] if request.config.getoption("--nightly") else []
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nightly, *words],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=KERNELS.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
