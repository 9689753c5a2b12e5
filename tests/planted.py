"""Bugs planted in a copy of the package, to show that seeds can fail.

A folder of patches, each caught by the seeds of a game. A patch that no longer applies is to be written anew.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from blockwright.tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SEEDS = 1000


class Copy:
    """A copy of ``rooms`` in which the seeds of ``game`` (see ``hunt.py``) look for a planted bug. ``needs``: what they
    import that is not of the package."""

    def __init__(self, folder: Path, game: str, *rooms: str, needs: Sequence[str] = ()) -> None:
        self.top, self.game = folder / "blockwright", game
        (self.top / "tests").mkdir(parents=True)
        for name in ("__init__.py", "tests/__init__.py", "tests/worker_config.py"):
            shutil.copy(ROOT / name, self.top / name)
        for name in rooms:  # with bytecode, which is stale for what a patch has touched alone
            shutil.copytree(ROOT / name, self.top / name)
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", str(ROOT / "tests" / "hunt.py"), *needs]
        self._hunter = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )

    def close(self) -> None:
        with self._hunter:
            self._hunter.kill()

    def seen(self, patch: Path, first: int = 0) -> str:
        """The property by which the first of SEEDS from ``first`` on sees it."""
        apply(patch, self.top)
        questions, answers = self._hunter.stdin, self._hunter.stdout
        assert questions
        assert answers
        try:
            questions.write(f"{self.game} {first} {SEEDS}\n")
            questions.flush()
            assert select.select([answers], [], [], 2 * PATIENCE)[0], f"no answer about {patch.stem}"
            found = answers.readline()
        finally:
            apply(patch, self.top, "--reverse")
        assert found.strip(), f"{SEEDS} seeds do not see {patch.stem}"
        seed, what = found.split(maxsplit=1)
        assert seed != "error", what
        return what.strip()


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
