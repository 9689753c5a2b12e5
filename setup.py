"""Build steps besides pyproject.toml: the scheduler's hot policies, compiled by mypyc where mypyc and a C compiler are
there, and the demo's models, which the wheel has where the checkout has them.

The compiled modules go to ``policies/_compiled``, never beside their sources, with the fingerprint of the sources that they
were made from. ``policies/compiled.py`` uses them only while it matches, so an edited source is never shadowed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
DEMO = ("demo-checkpoint", "demo-family")  # of examples: what ``blockwright demo`` serves
ROOMS = ("memory", "model", "plan", "prediction", "sweep")
# Runs in a folder of its own: mypyc writes beside what it compiles, and the package is named blockwright only there.
PROGRAM = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(sys.argv[1:], opt_level="2", debug_level="0", group_name="blockwright_policies")
sys.argv[1:] = ["build_ext", "--inplace", "--parallel", "2"]
setup(name="blockwright-policies", packages=[], py_modules=[], ext_modules=modules)
"""


def compilable(path: Path) -> bool:
    return path.name != "__init__.py" and "@dataclass" not in path.read_text()


def compile_policies(target: Path) -> None:
    """Write the compiled modules and ``sources.txt``, the fingerprint of their sources, to ``target``."""
    sys.path.insert(0, str(ROOT / "policies"))
    from compiled import fingerprint

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "blockwright")
        shutil.copytree(ROOT / "policies", package / "policies", ignore=shutil.ignore_patterns("_compiled", "__pycache__"))
        (package / "__init__.py").touch()
        rooms = [package / "policies" / room for room in ROOMS]
        # Dataclasses stay sources: mypyc forgets the annotations by which values travel and snapshots are restored.
        sources = [path for room in rooms for path in sorted(room.glob("*.py")) if compilable(path)]
        command = [sys.executable, "-c", PROGRAM, *(str(path.relative_to(folder)) for path in sources)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for made in [*(path for room in rooms for path in room.glob("*.so")), *Path(folder).glob("*.so")]:
            shutil.copy(made, target / ".".join(made.relative_to(folder).parts))
        (target / "sources.txt").write_text(fingerprint(package / "policies"))


class Build(build_ext):
    """Compiles the kernels as always, then the policies; without mypyc the server runs the sources, at half the speed."""

    def run(self) -> None:
        super().run()
        if os.environ.get("BLOCKWRIGHT_COMPILED") == "0":
            return
        folder = ROOT if self.inplace or self.editable_mode else Path(self.build_lib, "blockwright")
        try:
            compile_policies(folder / "policies" / "_compiled")
        except ImportError as error:
            print(f"policies are not compiled: {error}", file=sys.stderr)
        except subprocess.CalledProcessError as error:
            print(f"policies are not compiled:\n{error.stderr.decode()[-2000:]}", file=sys.stderr)


class Modules(build_py):
    """Copies the modules as always, then the demo's models."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in DEMO:
            target = Path(self.build_lib, "blockwright", "examples", name)
            if (ROOT / "examples" / name).is_dir():
                shutil.copytree(ROOT / "examples" / name, target, dirs_exist_ok=True)


# The name keeps this file out of wheels: the package lies at the root, too.
setup(script_name="setup.py", cmdclass={"build_ext": Build, "build_py": Modules})
