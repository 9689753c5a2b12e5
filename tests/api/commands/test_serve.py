"""The command ``serve``: its keeper loads nothing beyond Python's own library and ends with the code of its head."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from blockwright.api.serve import keeper

def keep(self):
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    ours = ("__", "_distutils", "blockwright")  # and what an editable installation loads at each start
    print(*sorted(name for name, file in files.items() if "site-packages" in file and not name.startswith(ours)))
    heavy = ("blockwright.runtime", "blockwright.transport")
    print(*sorted(name for name in files if name.startswith(heavy)))
    return 0

keeper.Keeper.keep = keep
from blockwright.api.commands.cli import main
sys.exit(main(["serve", sys.argv[1]]))
"""


def test_the_keeper_loads_nothing_but_pythons_own_library(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n\n"), done.stderr


def test_what_the_head_refuses_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blockwright", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("blockwright: ")
    assert len(done.stderr.splitlines()) == 1
