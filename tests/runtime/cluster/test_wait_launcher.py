"""The launcher that waits: it starts nothing, and writes the wish where a script reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.runtime.cluster.wait_launcher import WaitLauncher
from blockwright.tests.runtime.cluster.test_command_launcher import spec


async def test_the_wish_is_in_the_file_from_the_start_and_after_each_change(tmp_path: Path) -> None:
    file = tmp_path / "wish"
    launcher = WaitLauncher(file, 2)
    await launcher.start(lambda node, status: None)
    found = [file.read_text()]
    launcher.wish(3, "it is late")
    found.append(file.read_text())
    await launcher.stop()
    assert (found, os.listdir(tmp_path)) == (["2\n", "3\n"], ["wish"])


async def test_a_folder_that_is_gone_ends_no_head(tmp_path: Path) -> None:
    launcher = WaitLauncher(tmp_path / "absent" / "wish")
    launcher.wish(4, "it is late")
    with pytest.raises(FileNotFoundError):
        await launcher.start(lambda node, status: None)


async def test_nothing_is_started_from_here() -> None:
    launcher = WaitLauncher()
    with pytest.raises(LaunchError, match=r"node w1#1 is not started: an engine starts workers here \(launcher=wait\)"):
        await launcher.spawn(spec("w1"))
    assert (launcher.places, launcher.joins("w1"), launcher.list()) == (False, False, {})
