"""The seeds can fail: each bug in ``planted/`` is applied to a copy of the package and caught by them.

``CAUGHT`` says by which property. A patch that no longer applies after a change of the actors is to be written anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent / "planted"
CAUGHT = {
    "components_count_for_nothing": "device",
    "deaths_end_no_attempt": "ended",
    "gaps_are_not_asked_for": "ended",
    "pages_are_not_chained": "device",
    "unsent_attempts_are_forgotten": "ended",
}
SEEDS = 1000


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of what a simulation of the serving actors needs."""
    top = tmp_path_factory.mktemp("planted") / "blockwright"
    top.mkdir()
    for name in ("__init__.py", "tests/__init__.py"):
        (top / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, top / name)
    for name in ("policies", "transport", "runtime", "gpu", "actors", "tests/serving"):
        shutil.copytree(ROOT / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    return top


def apply(patch: Path, package: Path, *options: str) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(package.parent)}
    command = ["git", "apply", *options, str(patch)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{patch.name} does not apply any more: {done.stderr}"


def test_every_patch_has_its_property() -> None:
    assert {patch.stem for patch in PLANTED.glob("*.patch")} == set(CAUGHT)


@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_caught(bug: str, package: Path) -> None:
    patch = PLANTED / f"{bug}.patch"
    apply(patch, package)
    try:
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(package / "tests/serving/hunt.py"), "0", str(SEEDS)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=2 * PATIENCE)
    finally:
        apply(patch, package, "--reverse")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(), f"{SEEDS} seeds do not see {bug}"
    seed, what = done.stdout.split()
    assert what == CAUGHT[bug], f"seed {seed} sees {what}"
