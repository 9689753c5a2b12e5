"""Runs the tests of the kernels in processes in which Triton interprets: two, for each takes five seconds to start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.claims import claim

KERNELS = Path(__file__).parent / "kernels"
LONGEST = KERNELS / "test_attention.py"
OTHERS = sorted(set(KERNELS.glob("test_*.py")) - {LONGEST})


@claim("The CUDA kernels, interpreted, are right in float32 and bfloat16, and a row's bits are its own", of="numerics")
@pytest.mark.parametrize("files", [[LONGEST], OTHERS], ids=["attention", "others"])
def test_kernels(files: list[Path], request: pytest.FixtureRequest) -> None:
    nightly = ["--nightly"] if request.config.getoption("--nightly") else []
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nightly, *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=KERNELS.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
