"""The safety properties can fail: each bug in ``planted/`` is applied to a copy of the runtime and caught by the seeds.

``CAUGHT`` says by which property. A patch that no longer applies after a change of the runtime is to be written anew.
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
    "calls_wait_for_the_dead": "outcome",
    "chunks_are_taken_twice": "transfer",
    "credit_is_not_enforced": "credit",
    "deadline_is_not_inherited": "outcome",
    "duplicates_are_obeyed": "duplicate",
    "fencing_by_name_alone": "fencing",
    "late_answer_to_another_call": "answer",
    "monitors_fire_twice": "monitor",
    "supervisor_knows_no_bound": "intensity",
    "urgent_lane_is_a_stack": "fifo",
}
SEEDS = 1000


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of what a simulation needs."""
    top = tmp_path_factory.mktemp("planted") / "blockwright"
    top.mkdir()
    for name in ("__init__.py", "tests/__init__.py"):
        (top / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, top / name)
    for name in ("policies", "transport", "runtime", "tests/runtime/safety"):
        shutil.copytree(ROOT / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    return top


def apply(patch: Path, package: Path, *options: str) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(package.parent)}
    command = ["git", "apply", *options, str(patch)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{patch.name} does not apply any more: {done.stderr}"


def test_every_patch_has_its_property() -> None:
    assert {patch.stem for patch in PLANTED.glob("*.patch")} == set(CAUGHT)
    assert len(CAUGHT) >= 6


@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_caught(bug: str, package: Path) -> None:
    patch = PLANTED / f"{bug}.patch"
    apply(patch, package)
    try:
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(package / "tests/runtime/safety/hunt.py"), "0", str(SEEDS)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=2 * PATIENCE)
    finally:
        apply(patch, package, "--reverse")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(), f"{SEEDS} seeds do not see {bug}"
    seed, what = done.stdout.split()
    assert what == CAUGHT[bug], f"seed {seed} sees {what}"
