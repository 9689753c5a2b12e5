"""The order in which ``serve`` begins: workers import torch while it still imports what it needs itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from blockwright.actors import worker_processes

class Launcher:
    def begin(self):
        print("begun", *[name for name in ("aiohttp", "numpy", "blockwright.api.serve.server") if name in sys.modules])

    def abandon(self):
        print("abandoned")

worker_processes.worker_launcher = lambda directory: Launcher()
from blockwright.api.commands.cli import main
sys.exit(main(["serve", sys.argv[1]]))
"""


def test_the_forkserver_is_begun_before_the_rest_is_imported_and_ended_where_nothing_is_served(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "begun\nabandoned\n"), done.stderr
