"""The streaming pipeline, with its real processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import streaming_pipeline

from blockwright.runtime.base.window import WINDOW_ITEMS
from blockwright.tests.waiting import PATIENCE


@pytest.mark.system
def test_nothing_runs_ahead_and_leaving_stops_all() -> None:
    command = [sys.executable, streaming_pipeline.__file__]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, cwd=Path(streaming_pipeline.__file__).parent
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"2000 items in order, the source at most (\d+) ahead", done.stdout)
    assert found, done.stdout
    assert int(found[1]) <= 2 * WINDOW_ITEMS + 2, "a window for each of the two streams, and what is in hand"
    assert "left at 50: the source has stopped" in done.stdout
