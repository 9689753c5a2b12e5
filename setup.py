"""Build steps besides pyproject.toml: the kernels as a library that any Python loads; the scheduler's hot policies, compiled
by mypyc where mypyc and a C compiler are there; the demo's models; a wheel whose name says which machines can load it.

The compiled modules go to ``policies/_compiled``, never beside their sources, with the fingerprint of the sources that they
were made from. ``policies/compiled.py`` uses them only while it matches, so an edited source is never shadowed. Each has the
name of its interpreter's ABI, so those of several lie beside each other (docs/decisions/processes.md).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sysconfig import get_platform
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
DEMO = ("demo-checkpoint", "demo-family", "demo-tiers")  # of examples: what ``blockwright demo`` serves
UNTRACKED = shutil.ignore_patterns("roman")  # what examples/train_demo.py leaves there besides, as large as its base
ROOMS = ("drafts", "memory", "model", "plan", "prediction", "sweep")
OLDEST = (2, 17)  # glibc: nothing older has a Python and a torch that this package runs with
# Runs in a folder of its own: mypyc writes beside what it compiles, and the package is named blockwright only there.
PROGRAM = """
import sys
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extensions(self):
        self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")]
        super().build_extensions()

modules = mypycify(sys.argv[1:], opt_level="2", debug_level="0", group_name="blockwright_policies")
sys.argv[1:] = ["build_ext", "--inplace", "--parallel", "2"]
setup(name="blockwright-policies", packages=[], py_modules=[], ext_modules=modules, cmdclass={"build_ext": Build})
"""


def compilable(path: Path) -> bool:
    return path.name != "__init__.py" and "@dataclass" not in path.read_text()


def compile_policies(python: str, target: Path) -> None:
    """Write the modules compiled for ``python`` to ``target``, and ``sources.txt``, the fingerprint of their sources.

    What lies there from the same sources, compiled for other interpreters, stays.
    """
    sys.path.insert(0, str(ROOT / "policies"))
    from compiled import fingerprint

    made_from = fingerprint(ROOT / "policies")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "blockwright")
        shutil.copytree(ROOT / "policies", package / "policies", ignore=shutil.ignore_patterns("_compiled", "__pycache__"))
        (package / "__init__.py").touch()
        rooms = [package / "policies" / room for room in ROOMS]
        # Dataclasses stay sources: mypyc forgets the annotations by which values travel and snapshots are restored.
        sources = [path for room in rooms for path in sorted(room.glob("*.py")) if compilable(path)]
        command = [python, "-c", PROGRAM, *(str(path.relative_to(folder)) for path in sources)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        if not (target / "sources.txt").exists() or (target / "sources.txt").read_text() != made_from:
            shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        for made in [*(path for room in rooms for path in room.glob("*.so")), *Path(folder).glob("*.so")]:
            shutil.copy(made, target / ".".join(made.relative_to(folder).parts))
        (target / "sources.txt").write_text(made_from)


def platform_tag(folder: Path, system: str) -> str:
    """The platform of a wheel of what lies in ``folder``: ``any`` without libraries, else the oldest glibc that has all that
    they ask for (PEP 600), and ``system`` (``linux_x86_64``) where there is no glibc."""
    libraries = [path.read_bytes() for path in folder.rglob("*.so")]
    if not libraries:
        return "any"
    wanted = {(int(major), int(minor)) for data in libraries for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)}
    if not wanted or not system.startswith("linux_"):
        return system
    major, minor = max(OLDEST, *wanted)
    return system.replace("linux_", f"manylinux_{major}_{minor}_", 1)


class Build(build_ext):
    """Compiles the kernels as always, then the policies; without mypyc the server runs the sources, at half the speed."""

    user_options = [
        *build_ext.user_options,
        (
            "pythons=",
            None,
            "interpreters for which the policies are compiled instead of this one (a:b:c), by their own mypy",
        ),
    ]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.pythons = ""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the interpreter's ABI: the kernels are no module, ctypes loads them."""
        return str(Path(*fullname.split("."))) + ".so"

    def up_to_date(self) -> bool:
        """Whether an editable installation finds the kernels made, by ``build_ext --inplace`` beside what went before it."""
        folder = ROOT / "gpu" / "cpu" / "kernels"
        sources = [*folder.glob("*.c"), *folder.glob("*.h"), ROOT / "pyproject.toml", ROOT / "setup.py"]
        made = folder / "_cpu.so"
        return made.exists() and all(made.stat().st_mtime > path.stat().st_mtime for path in sources)

    def build_extensions(self) -> None:
        # Some interpreters want the folder of their own libraries in whatever they build; of another machine it is none.
        self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")]
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            """As many at a time as there are processors: setuptools takes the sources of a library one by one."""
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                return [made for one in pool.map(lambda source: compile_one([source], **options), sources) for made in one]

        self.compiler.compile = compile_all
        super().build_extensions()

    def run(self) -> None:
        if not (self.editable_mode and self.up_to_date()):
            super().run()
        if os.environ.get("BLOCKWRIGHT_COMPILED") == "0":
            return
        folder = ROOT if self.inplace or self.editable_mode else Path(self.build_lib, "blockwright")
        for python in filter(None, (self.pythons or sys.executable).split(":")):
            try:
                compile_policies(python, folder / "policies" / "_compiled")
            except subprocess.CalledProcessError as error:
                said = (error.stdout + error.stderr).decode()[-2000:]
                print(f"policies are not compiled for {python}:\n{said}", file=sys.stderr)


class Modules(build_py):
    """Copies the modules as always, then the demo's models."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in DEMO:
            target = Path(self.build_lib, "blockwright", "examples", name)
            if (ROOT / "examples" / name).is_dir():
                shutil.copytree(ROOT / "examples" / name, target, ignore=UNTRACKED, dirs_exist_ok=True)


class Wheel(bdist_wheel):
    """One for every Python: only the compiled policies are of certain ones, and the others run the sources."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", platform_tag(Path(self.bdist_dir), get_platform().replace("-", "_"))


if __name__ == "__main__":
    # The name keeps this file out of wheels: the package lies at the root, too.
    setup(script_name="setup.py", cmdclass={"build_ext": Build, "build_py": Modules, "bdist_wheel": Wheel})
