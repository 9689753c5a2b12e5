"""Bugs planted in a copy of the package, to show that seeds can fail.

A folder of patches, each caught by the seeds of a game. A patch that no longer applies is to be written anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from blockwright.tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SEEDS = 1000


class Copy:
    """A copy of ``rooms`` in which the seeds of ``game`` (see ``hunt.py``) look for a planted bug."""

    def __init__(self, folder: Path, game: str, *rooms: str) -> None:
        self.top, self.game = folder / "blockwright", game
        (self.top / "tests").mkdir(parents=True)
        for name in ("__init__.py", "tests/__init__.py", "tests/hunt.py"):
            shutil.copy(ROOT / name, self.top / name)
        for name in rooms:  # with bytecode, which is stale for what a patch has touched alone
            shutil.copytree(ROOT / name, self.top / name)

    def seen(self, patch: Path, first: int = 0) -> str:
        """The property by which the first of SEEDS from ``first`` on sees it."""
        apply(patch, self.top)
        try:
            environment = {**os.environ, "PYTHONPATH": str(self.top.parent), "PYTHONDONTWRITEBYTECODE": "1"}
            command = [sys.executable, "-m", "blockwright.tests.hunt", self.game, str(first), str(SEEDS)]
            options = {"capture_output": True, "text": True, "check": False, "cwd": self.top.parent, "timeout": 2 * PATIENCE}
            done = subprocess.run(command, env=environment, **options)  # type: ignore[call-overload]
        finally:
            apply(patch, self.top, "--reverse")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split(), f"{SEEDS} seeds do not see {patch.stem}"
        return str(done.stdout.split()[1])


def apply(patch: Path, package: Path, *options: str) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(package.parent)}
    command = ["git", "apply", *options, str(patch)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{patch.name} does not apply any more: {done.stderr}"


def check(patches: Path, caught: dict[str, str]) -> None:
    """Every patch applies and has its property."""
    for patch in patches.glob("*.patch"):
        apply(patch, ROOT, "--check")
    assert {patch.stem for patch in patches.glob("*.patch")} == set(caught)
