"""Runs where atheris is installed (``pip install atheris``; it is no dependency of the tests)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE


@claim("Garbage on a node's socket is refused and other peers go on", of="actor-runtime")
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_a_bounded_run_finds_nothing(tmp_path: Path) -> None:
    script = Path(__file__).parent / "atheris_reception.py"
    command = [sys.executable, str(script), "3000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
