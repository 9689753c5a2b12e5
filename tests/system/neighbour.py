"""The next release, made of this tree: a wheel with fields added and removed since, in an environment of its own.

Every recorded dataclass gets a field that is never its default, so that each message of it says more than this tree knows;
two lose a field that the other release reads; the busiest endpoints get a parameter. The rest is this tree.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from blockwright.runtime.base.schema import RECORDS
from blockwright.tests.docs.test_install import lend
from blockwright.transport.handshake import SPOKEN

ROOT = Path(__file__).parents[2]
RELEASE = "99.0.0"
ADDED = (
    "    added_since: float = __import__('dataclasses').field(default_factory=__import__('time').monotonic, compare=False)\n"
)
KEPT = ("Settings", "ModelConfig", "RopeConfig")  # endings of classes of which each field means something by itself
REMOVED = {"policies.WorkerReport": {"addresses_limited": False}, "actors.BlockLoaded": {"unfetched": ""}}
CHANGES = {  # file -> what stands there, and what stands there in the next release
    "pyproject.toml": [(r'(?m)^version = ".*"$', f'version = "{RELEASE}"')],
    "transport/handshake.py": [
        (rf"Versions\({SPOKEN.lowest}, {SPOKEN.highest}\)", f"Versions({SPOKEN.highest}, {SPOKEN.highest + 1})")
    ],
    "policies/cluster/worker_size.py": [
        (r"    addresses_limited: bool = False.*\n", ""),
        (r"        addresses_limited=.*\n", ""),
    ],
    "actors/controller/actor.py": [
        (r"for report in reports if report\.addresses_limited\)", "for report in reports if False)")
    ],
    "actors/worker/messages.py": [(r'    unfetched: str = "".*\n', "")],
    "actors/worker/block_loader.py": [(r", answer\.fetched, answer\.unfetched\)", ", answer.fetched)")],
    "actors/worker/actor.py": [
        (r"(\(ref\.tokens if isinstance\(report, SweepReport\) else ref\.peer\)\.cast)\(report\)", r"\1(report, 1.5)"),
        (r"async def peer\(self, report: PeerReport\)", "async def peer(self, report: PeerReport, sent: float = 0.0)"),
    ],
    "actors/gateway/actor.py": [
        (r"async def tokens\(self, report: SweepReport\)", "async def tokens(self, report: SweepReport, sent: float = 0.0)")
    ],
}


def build(folder: Path) -> Path:
    """Build the wheel of the next release and install it; return the interpreter that has it."""
    tree = folder / "tree"
    listed = _done("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).split()
    for name in listed:
        left = name.startswith(("tests/", "benchmarks/", "docs/", "examples/", ".typetree"))
        if not left and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    change(tree)
    environment = {"BLOCKWRIGHT_COMPILED": "0"}  # the policies run from source, for the same bits
    _done(sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(folder / "dist"), cwd=tree, **environment)
    (wheel,) = (folder / "dist").iterdir()
    lend(folder / "lent")
    _done(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    (place,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (place / "lent.pth").write_text(f"{folder / 'lent'}\n")
    python = folder / "venv" / "bin" / "python"
    _done(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", str(wheel), cwd=folder)
    said = _done(str(python), "-m", "blockwright", "version", cwd=folder)
    assert RELEASE in said, said
    return python


class Installation:
    """An environment in which either release is installed, as an operator changes it under a server that runs.

    python: its interpreter. later: that of the next release.
    """

    def __init__(self, folder: Path, later: str) -> None:
        (next_release,) = (Path(later).parents[1] / "lib").glob("python*/site-packages")
        own = folder / "own"
        own.mkdir()
        (own / "blockwright").symlink_to(ROOT)
        found = distribution("blockwright")
        name = f"blockwright-{found.version}.dist-info"
        (own / name).mkdir()
        (own / name / "METADATA").write_text(found.read_text("METADATA") or "")
        self._folders = {found.version: own, RELEASE: next_release}
        self._link = folder / "installed"
        self.install(found.version)
        _done(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
        (place,) = (folder / "venv" / "lib").glob("python*/site-packages")
        lent = (next_release / "lent.pth").read_text()
        (place / "either.pth").write_text(f"{self._link}\n{lent}")
        self.python = str(folder / "venv" / "bin" / "python")

    def install(self, release: str) -> None:
        """Replace what is installed."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self._folders[release])


def change(tree: Path) -> None:
    """Make the next release of a tree."""
    for name, pairs in CHANGES.items():
        text = (tree / name).read_text()
        for old, new in pairs:
            text, count = re.subn(old, new, text)
            assert count == 1, f"{old} stands {count} times in {name}"
        (tree / name).write_text(text)
    path = tree / "runtime" / "base" / RECORDS
    records = json.loads(path.read_text())
    for name, fillers in REMOVED.items():
        records["types"][name]["fillers"] = fillers
    path.write_text(json.dumps(records))
    wanted = {name for name in records["types"] if not name.endswith(KEPT)}
    for file in sorted(tree.rglob("*.py")):
        layer = file.relative_to(tree).parts[0]
        _add_fields(file, {name.partition(".")[2] for name in wanted if name.startswith(f"{layer}.")})


def _add_fields(file: Path, names: set[str]) -> None:
    """Add a field to the dataclasses of these names that a file defines, behind the others."""
    text = file.read_text()
    lines, places = text.splitlines(keepends=True), list[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name in names and _is_dataclass(node):
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            places.append((fields[-1].end_lineno if fields else node.body[0].end_lineno) or 0)
    for place in sorted(places, reverse=True):
        lines.insert(place, ADDED)
    if places:
        file.write_text("".join(lines))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _done(*command: str, cwd: Path, **environment: str) -> str:
    """Return what a command wrote. It has to end well."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(command, cwd=cwd, env=own | environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    return run.stdout
