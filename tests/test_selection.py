"""Which tests run: what is long only when it is asked for, whatever ``-m`` says, and from the seed that was given."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from blockwright.tests.test_architecture import ROOT

SEEDS = "tests/runtime/test_fresh_seeds.py"


def collected(*words: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    return re.findall(r"^tests/\S+", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("words", [(), ("-m", "not system"), ("-m", "nightly")])
def test_what_is_long_is_left_out(words: tuple[str, ...]) -> None:
    assert collected(SEEDS, *words) == []


def test_what_is_long_can_be_had() -> None:
    assert len(collected(SEEDS, "--nightly", "--seed", "7", "--seeds", "101", "-m", "not system")) == 3
