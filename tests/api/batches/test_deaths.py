"""kill -9 at every write of a batch's life, before and after it is on the disk: see ``mortal.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.parts import some
from blockwright.tests.waiting import PATIENCE


@pytest.mark.parametrize("step", some((1, 2), 2))
def test_whenever_it_dies_the_next_life_ends_the_batch(tmp_path: Path, step: int) -> None:
    script = Path(__file__).with_name("mortal.py")
    command = [sys.executable, str(script), str(tmp_path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["when"] for one in cases} == {"before", "after"}
    assert max(one["write"] for one in cases) >= 8, "a file, a batch, its check, its beginning, answers, files, its end"
    assert any(one["stored"] and one["again"] for one in cases), "a part was there"
