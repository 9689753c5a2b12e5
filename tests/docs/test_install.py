"""The installation of docs/quick-start.md, as it stands there, in a copy of the sources and an environment of its own.

Nothing is downloaded: what the package needs is lent by the environment of the tests, so pip finds it there. No compiler is
used either, which the installation must bear; that the kernels compile is shown by every test of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import ROOT, blocks, elsewhere, free_port
from blockwright.tests.waiting import PATIENCE

LEND = """
python3() {
  "$PYTHON" "$@"
  for folder in .venv/lib/python*/site-packages; do
    echo "import sys; sys.path.insert(0, '$LENT')" > "$folder/lent.pth"
  done
}
"""


def lend(folder: Path) -> None:
    """Links to all packages that are installed here, without ours; nor mypyc, whose work no compiler would end."""
    folder.mkdir()
    for path in (path for place in sys.path if place.endswith("-packages") for path in Path(place).iterdir()):
        theirs = (
            "blockwright" not in path.name and path.suffix != ".pth" and path.name not in ("pip", "mypyc", "__pycache__")
        )
        if theirs and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


@claim("The installation in the quick start works as it is written", of="installation")
@pytest.mark.system
@pytest.mark.nightly
def test_the_installation_works(tmp_path: Path) -> None:
    (block,) = [block for block in blocks((ROOT / "docs" / "quick-start.md").read_text()) if "install" in block.tested]
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        if not name.startswith(("tests/", "benchmarks/", "examples/")) and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    lend(tmp_path / "lent")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PIP_FIND_LINKS")
    }
    environment |= {"LENT": str(tmp_path / "lent"), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "CC": "false"}
    environment["PYTHON"] = str(Path(sys.executable).resolve())  # for which that was built; the first on the path may differ
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", LEND + elsewhere(block.text, str(free_port()))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Successfully installed blockwright" in done.stdout
    assert "-bfloat16 (the torch reference" in done.stdout, "doctor of the new environment"
