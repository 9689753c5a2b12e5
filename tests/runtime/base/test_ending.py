"""A process ends although its threads hang."""

from __future__ import annotations

import subprocess
import sys

from blockwright.tests.waiting import PATIENCE

PROGRAM = """
import asyncio, threading
from blockwright.runtime.base.ending import end_within

async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    print("served", end="")
    end_within(0.1, 7)

asyncio.run(main())
"""


def test_a_process_whose_threads_hang_ends_with_its_code_and_its_output() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "served", "")
