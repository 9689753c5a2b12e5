"""The ``make`` lines of README.md: what they would do is looked at, since doing it is the whole set-up and every test."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import ROOT, accept, blocks

PACKAGE = " -e ."


def would_run(line: str, venv: str) -> list[str]:
    """The commands of a make line, in order, for a machine where nothing is set up."""
    script = line.replace("make ", f"make --no-print-directory -n VENV={venv} ")
    own = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}  # of the make that runs this test
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False, env=own)
    assert done.returncode == 0, done.stderr
    return [text for text in done.stdout.replace("\\\n", " ").splitlines() if text.strip()]


@claim("`make demo` and `make test` run all commands that a fresh clone needs", of="installation")
def test_the_lines_of_the_readme_do_what_they_say() -> None:
    lines = [
        line.partition("#")[0] for block in blocks((ROOT / "README.md").read_text()) for line in block.text.splitlines()
    ]
    demo, test, cpu = (would_run(line, "/nowhere/venv") for line in lines if "make " in line)
    accept(shlex.split(demo[-1]))
    assert demo[-1] == "/nowhere/venv/bin/blockwright demo"
    pytest = r"/nowhere/venv/bin/python -m pytest -n \d+ --maxprocesses 8 --dist worksteal"
    assert re.fullmatch(pytest, test[-2])
    sources = "BLOCKWRIGHT_COMPILED=0 /nowhere/venv/bin/python -m pytest"
    assert re.fullmatch(rf"{sources} +tests/policies/sweep/\S+ tests/policies/sweep/\S+ tests/policies/memory", test[-1])
    (torch,) = (line for line in cpu if "torch==" in line)
    assert "--index-url https://download.pytorch.org/whl/cpu" in torch
    assert cpu.index(torch) < next(i for i, line in enumerate(cpu) if PACKAGE in line), "torch goes in first"
    tools = "/nowhere/venv/.test-tools.txt"
    assert any(line.endswith(f"-r {tools}") for line in test)
    assert not any(tools in line for line in (*demo, *cpu)), "a first look installs no test tools"
    (package,) = (line for line in demo if PACKAGE in line)
    assert "BLOCKWRIGHT_COMPILED=0" in package, "and waits for no mypyc"
    assert sum("build_ext --inplace" in line for line in demo) < sum("build_ext --inplace" in line for line in test)
