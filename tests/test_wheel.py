"""The wheel of docs/operations.md, in an environment of its own: it serves there, compiled, and its types are found.

Nothing is downloaded: what the package needs is lent by the environment of the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.docs.test_install import lend
from blockwright.tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "typed_program.py"

pytestmark = [pytest.mark.nightly, pytest.mark.system]


def done(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command wrote. It has to end well."""
    own = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHONPATH", "BLOCKWRIGHT_COMPILED")
    }
    run = subprocess.run(
        command, cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=4 * PATIENCE, check=False
    )
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    return run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None or shutil.which("make") is None:
        pytest.skip("there is no gcc or no make")
    tree = tmp_path_factory.mktemp("tree")
    listed = done("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).split()
    for name in listed:
        if (
            not name.startswith(("tests/", "benchmarks/", "docs/"))
            and (ROOT / name).is_file()
            and name != ".typetree/blockwright"
        ):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    # With this Python alone, which has its mypy: what others get is the same, compiled by theirs.
    done("make", "-o", "setup", "wheel", f"VENV={sys.prefix}", "PYTHONS=", cwd=tree)
    (made,) = (tree / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of executables of an environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    lend(folder / "lent")
    done(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (place,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (place / "lent.pth").write_text(f"{folder / 'lent'}\n")
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv" / "bin" / "python")
    done(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    return folder / "venv" / "bin"


@claim("One wheel serves every supported Python and every glibc since 2.17", of="installation")
@pytest.mark.skipif(not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="about Linux on x86-64")
def test_one_wheel_serves_every_python_and_every_glibc_since_2_17(wheel: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"blockwright-[\w.]+-py3-none-manylinux_2_17_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.extract(name, tmp_path) for name in archive.namelist() if name.endswith(".so")]
    assert len(libraries) > 10
    wanted: set[str] = set()
    for library in libraries:
        head = done("objdump", "-p", library, cwd=tmp_path)
        wanted |= set(re.findall(r"NEEDED +(\S+)", head))
        assert "RPATH" not in head, "a folder of the machine where it was built"
        assert "RUNPATH" not in head, "a folder of the machine where it was built"
    assert wanted <= {"libc.so.6", "libm.so.6", "libpthread.so.0"}, "what PEP 600 counts on everywhere"


@claim("The installed wheel serves models, and `doctor` and `demo` run from it", of="installation")
def test_it_serves_where_it_is_installed(environment: Path, tmp_path: Path) -> None:
    doctor = done(environment / "blockwright", "doctor", cwd=tmp_path)
    assert "scheduler: compiled" in doctor, doctor
    assert "torch reference" not in doctor, "the native kernels compute"
    outcome = done(environment / "blockwright", "demo", cwd=tmp_path)
    assert "right on held-out prompts" in outcome, "the demo's models are in the wheel"
    assert "FAILED" not in outcome
    assert "the server stopped on request" in outcome


@claim("The installed package is typed, and mypy checks a program against it", of="embedding")
def test_a_typed_program_finds_its_types(environment: Path, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "program.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment / "python", "program.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {int(number) for number in re.findall(r"^program\.py:(\d+): error", run.stdout, re.MULTILINE)}
    marked = {number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# wrong: " in line}
    assert found == marked, run.stdout
