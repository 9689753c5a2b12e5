"""The kernels' scheduler under the sanitizer for races, with threads delayed at every point of a piece; and planted faults
that it must find. Skipped where no compiler has the sanitizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.waiting import PATIENCE

KERNELS = Path(__file__).parents[2] / "gpu" / "cpu" / "kernels"
DRIVER = Path(__file__).parent / "race" / "race.c"
COMPILE = ["-g", "-O1", "-fsanitize=thread", "-Wno-tsan", "-std=gnu11", "-pthread"]
DELAYS = [(2, 30, 200), (4, 15, 100), (7, 60, 1000), (3, 0, 0)]  # threads, one in so many points, microseconds

FAULTS = {
    "stored before it is committed": (
        "pieces.c",
        "while (!atomic_compare_exchange_weak(word, &seen, committed));",
        "while (0);\n    atomic_store(word, committed);",
    ),
    "counted before it is stored": (
        "pieces.c",
        "if (atomic_load_explicit(word_of(j, owner, i), memory_order_acquire) != stored)",
        "if (atomic_load_explicit(word_of(j, owner, i), memory_order_acquire) < stored - STORED + COMMITTED)",
    ),
    "a piece is marked as stored without order": (
        "pieces.c",
        "    atomic_store_explicit(word, j->now << 2 | STORED, memory_order_release);",
        "    atomic_store_explicit(word, j->now << 2 | STORED, memory_order_relaxed);",
    ),
    "the phase is published without order": (
        "pieces.c",
        "    atomic_store_explicit(&x->phase, j->now + 1, memory_order_release);",
        "    atomic_store_explicit(&x->phase, j->now + 1, memory_order_relaxed);",
    ),
    "a call is used again while a thread reads it": (
        "pool.c",
        "used |= atomic_load(&x->team[t].in) == call;",
        "used |= 0 & (atomic_load(&x->team[t].in) == call);",
    ),
}


def build(folder: Path, change: tuple[str, str, str] | None = None) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    for path in [*KERNELS.glob("*.h"), KERNELS / "pool.c", KERNELS / "pieces.c", DRIVER]:
        shutil.copy(path, folder)
    if change is not None:
        name, old, new = change
        text = (folder / name).read_text()
        assert text.count(old) == 1, f"{name} has changed: plant the fault again"
        (folder / name).write_text(text.replace(old, new))
    sources = ["race.c", "pool.c", "pieces.c"]
    done = subprocess.run([compiler, *COMPILE, *sources, "-o", "race"], cwd=folder, capture_output=True, text=True)
    if done.returncode and "tsan" in done.stderr:
        pytest.skip("the compiler lacks the sanitizer for races")
    assert done.returncode == 0, done.stderr
    return folder / "race"


def run(binary: Path, *arguments: int) -> subprocess.CompletedProcess[str]:
    """Without address space randomisation where that can be: old sanitizers do not know all of it."""
    plain = [str(binary), *map(str, arguments)]
    fixed = ["setarch", os.uname().machine, "-R", *plain]
    command = fixed if shutil.which("setarch") else plain
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if "Operation not permitted" in done.stderr:
        done = subprocess.run(plain, capture_output=True, text=True, timeout=PATIENCE)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not know this kernel's address space")
    return done


@claim("The kernels have no data races, and planted ones are found", of="numerics")
def test_there_are_no_races(tmp_path: Path) -> None:
    binary = build(tmp_path)
    for arguments in DELAYS:
        done = run(binary, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr[:4000]}"


@claim("The kernels have no data races, and planted ones are found", of="numerics")
@pytest.mark.parametrize("fault", some(FAULTS, "stored before it is committed", "the phase is published without order"))
def test_planted_faults_are_found(tmp_path: Path, fault: str) -> None:
    binary = build(tmp_path, FAULTS[fault])
    assert any(run(binary, *arguments).returncode for arguments in DELAYS * 3)
