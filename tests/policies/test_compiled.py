"""The compiled form of the policies is used exactly while it was made from the sources that lie beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.policies import COMPILED
from blockwright.policies.compiled import ROOMS, compiled_folder, fingerprint, use_compiled
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "gpu" / "cpu" / "kernels" / "_cpu.so"
WORLD = """
from blockwright.policies import COMPILED
from blockwright.tests.policies.sweep.test_snapshot import busy
print(COMPILED, *(worker.state.digest().hex() for worker in busy().workers.values()))
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BLOCKWRIGHT_COMPILED", raising=False)
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "state.py").write_text(f"room = {room!r}\n")
    (tmp_path / "_compiled").mkdir()
    (tmp_path / "_compiled" / "sources.txt").write_text(fingerprint(tmp_path))
    return tmp_path


def test_it_is_used_while_the_sources_are_the_same(sources: Path) -> None:
    assert compiled_folder(sources) == sources / "_compiled"


@claim("Compiled policies come to the same state as their sources and never shadow an edited one", of="code-and-tests")
@pytest.mark.parametrize("room", ROOMS)
def test_an_edited_source_is_never_shadowed(sources: Path, room: str) -> None:
    (sources / room / "state.py").write_text("edited = True\n")
    assert compiled_folder(sources) is None
    assert use_compiled(str(sources)) is False


def test_a_new_or_a_missing_source_shows(sources: Path) -> None:
    (sources / ROOMS[0] / "new.py").touch()
    assert compiled_folder(sources) is None
    (sources / ROOMS[0] / "new.py").unlink()
    assert compiled_folder(sources) is not None
    (sources / ROOMS[0] / "state.py").unlink()
    assert compiled_folder(sources) is None


def test_the_variable_asks_for_the_sources(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_COMPILED", "0")
    assert compiled_folder(sources) is None


@pytest.mark.skipif(
    not KERNELS.exists() or os.environ.get("BLOCKWRIGHT_COMPILED") == "0", reason="set up without a compiler"
)
def test_the_set_up_compiled_the_policies() -> None:
    """A construct that mypyc refuses leaves the sources to run at half the speed, and the set-up still ends well."""
    assert (ROOT / "policies" / "_compiled" / "sources.txt").exists(), "run `python setup.py build_ext --inplace` to see why"


def test_without_a_compiled_form_the_sources_run(sources: Path) -> None:
    (sources / "_compiled" / "sources.txt").unlink()
    assert compiled_folder(sources) is None


@claim("Compiled policies come to the same state as their sources and never shadow an edited one", of="code-and-tests")
@pytest.mark.skipif(not COMPILED, reason="the policies are not compiled here")
def test_both_forms_come_to_the_same_state() -> None:
    """A busy world of two workers: the same events, and digests over all state that agree."""

    def run(compiled: str) -> list[str]:
        environment = {**os.environ, "BLOCKWRIGHT_COMPILED": compiled}
        done = subprocess.run(
            [sys.executable, "-c", WORLD], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    (first, *fast), (second, *slow) = run("1"), run("0")
    assert (first, second) == ("True", "False")
    assert fast == slow
