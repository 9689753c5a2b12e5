"""What ps shows of a process."""

import subprocess
import sys

CODE = """
from pathlib import Path
from blockwright.runtime.cluster.forkserver import set_title
set_title({title})
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode())
print(Path("/proc/self/environ").read_bytes().count(b"MARK=here"))
"""


def run_titled(title: str) -> list[str]:
    command = [sys.executable, "-c", CODE.format(title=title)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"MARK": "here"})
    return done.stdout.splitlines()


def test_the_title_stands_in_place_of_the_command_line() -> None:
    assert run_titled("'blockwright: w0'") == ["blockwright: w0", "1"]


def test_a_long_one_is_cut_and_the_environment_stays() -> None:
    name, marks = run_titled("'x' * 5000")
    assert set(name) == {"x"}
    assert len(name) < 5000
    assert marks == "1"
