"""What is installed is what lies in the folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from blockwright.tests.claims import claim
from blockwright.tests.test_architecture import imports_of

ROOT = Path(__file__).parents[1]
NOT_PACKAGES = {"tests", "benchmarks", "examples", "docs", "build", "dist"}


def project() -> dict:  # type: ignore[type-arg]
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def build_steps() -> ModuleType:
    """setup.py, which builds nothing when it is imported."""
    spec = spec_from_file_location("build_steps", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packages_on_disk() -> set[str]:
    found = {"blockwright"}
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in NOT_PACKAGES:
            for marker in folder.rglob("__init__.py"):
                found.add(".".join(("blockwright", *marker.parent.relative_to(ROOT).parts)))
    return found


def test_the_package_list_equals_the_folders() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_on_disk()


def test_the_version_is_that_of_the_changelog() -> None:
    """Between two releases it is the next one's, marked as not there yet."""
    text = (ROOT / "CHANGELOG.md").read_text()
    (first, _), *rest = found = re.findall(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    released = [(Version(name), day) for name, day in (rest if first == "Unreleased" else found)]
    assert len(found) == text.count("\n## ")
    assert released == sorted(released, reverse=True), "the newest first"
    assert all(day for _, day in released)
    version = Version(project()["project"]["version"])
    if first == "Unreleased":
        assert version.is_devrelease
        assert version > released[0][0]
        assert f"To be {version.base_version}." in text
    else:
        assert version == released[0][0]


@pytest.mark.parametrize(
    ("libraries", "tag"),
    [
        ({}, "any"),
        ({"a": b"\0GLIBC_2.2.5\0GLIBC_2.14\0"}, "manylinux_2_17_x86_64"),
        ({"a": b"\0GLIBC_2.14\0", "b": b"\0GLIBC_2.9\0GLIBC_2.34\0"}, "manylinux_2_34_x86_64"),
        ({"a": b"\0libc.musl-x86_64.so.1\0"}, "linux_x86_64"),
    ],
)
def test_a_wheel_says_which_glibc_it_needs(tmp_path: Path, libraries: dict[str, bytes], tag: str) -> None:
    for name, data in libraries.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "library.so").write_bytes(data)
    assert build_steps().platform_tag(tmp_path, "linux_x86_64") == tag


def test_a_change_of_any_header_compiles_the_kernels_again() -> None:
    """Headers that are not listed are no part of a source distribution either."""
    (kernels,) = project()["tool"]["setuptools"]["ext-modules"]
    assert sorted(kernels["depends"]) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("gpu/cpu/kernels/*.h"))
    assert sorted(kernels["sources"]) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("gpu/cpu/kernels/*.c"))


def test_what_is_compiled_here_needs_no_glibc_of_today(tmp_path: Path) -> None:
    """The linker takes the newest form of each function that the machine has; gpu/cpu/kernels/native.h asks for old ones."""
    libraries = [*(ROOT / "gpu" / "cpu" / "kernels").glob("*.so"), *(ROOT / "policies" / "_compiled").glob("*.so")]
    if not libraries or os.uname().machine != "x86_64":
        pytest.skip("nothing is compiled here for x86-64")
    for library in libraries:
        shutil.copy(library, tmp_path)
    assert build_steps().platform_tag(tmp_path, "linux_x86_64") in ("manylinux_2_17_x86_64", "linux_x86_64")


@claim("The installed package is typed, and mypy checks a program against it", of="embedding")
def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "py.typed").exists()
    assert "py.typed" in project()["tool"]["setuptools"]["package-data"]["*"]


def test_no_stray_module_lies_at_the_root() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "setup.py"}


GPU = {"triton", "cupy", "cuda", "pynvml"}


def test_what_is_imported_is_declared() -> None:
    """Not merely there because something else wants it."""
    listed = project()["project"]
    declared = {canonicalize_name(Requirement(text).name) for text in listed["dependencies"]}
    lent = packages_distributions()
    missing = set()
    for folder in packages_on_disk():
        for path in set((ROOT / "/".join(folder.split(".")[1:])).glob("*.py")) - {ROOT / "setup.py"}:
            names = {name.partition(".")[0] for name in imports_of(path)} - {"blockwright", "__future__"}
            names -= {"pytest"} if path.name == "pytest_plugin.py" else set()  # which nothing else loads
            names -= {"opentelemetry"} if path.name == "otlp.py" else set()  # the extra of that name, asked for by a setting
            names -= {"ray"} if path.name == "ray_driver.py" else set()  # the extra "ray", in a process of its own
            names -= GPU if "cuda" in path.parts else set()  # the extra "gpu", of what opens a card alone
            for name in names - set(sys.stdlib_module_names):
                if not declared & {canonicalize_name(one) for one in lent.get(name, [name])}:
                    missing.add((str(path.relative_to(ROOT)), name))
    assert missing == set()


def test_every_direct_dependency_has_a_pinned_release_that_fits() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pinned = {}
    for line in lines:
        name, _, version = line.partition("==")
        pinned[name.lower()] = version
    wanted = project()["project"]
    extras = wanted["optional-dependencies"]
    for text in (*wanted["dependencies"], *extras["test"], *extras["gpu"]):
        requirement = Requirement(text)
        assert requirement.name.lower() in pinned, text
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), text
    assert lines[0].startswith("torch==")


def test_committed_links_stay_inside() -> None:
    """Another would lead to a folder of the machine where it was made."""
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = [ROOT / line.partition("\t")[2] for line in listed.splitlines() if line.startswith("120000")]
    assert [link.name for link in links if not link.resolve().is_relative_to(ROOT)] == []


@claim("The wheel holds every module, the demo models and the web page, and nothing else", of="installation")
@pytest.mark.system
def test_the_wheel_holds_every_module_and_nothing_else(tmp_path: Path) -> None:
    """Built from a copy of the sources, so that no build folder is left behind here."""
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    tree = tmp_path / "tree"
    for name in files:
        if (ROOT / name).is_file() and (name.startswith("examples/") or not (ROOT / name).is_symlink()):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(tree),
    ]
    plain = {
        **os.environ,
        "CC": "false",
        "BLOCKWRIGHT_COMPILED": "0",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"blockwright-{project()['project']['version']}-py3-none-any.whl", "nothing in it is compiled"
    with zipfile.ZipFile(wheel) as archive:
        every = set(archive.namelist())
        held = {name for name in every if name.endswith((".py", "py.typed"))}
    folders = tuple(name.split(".")[1] for name in packages_on_disk() if "." in name)
    expected = {f"blockwright/{name}" for name in files if name.startswith(tuple(f"{f}/" for f in folders))}
    expected = {name for name in expected if name.endswith((".py", "py.typed"))} | {
        "blockwright/__init__.py",
        "blockwright/__main__.py",
        "blockwright/py.typed",
    }
    assert held == expected
    shipped = (
        "examples/demo-checkpoint/",
        "examples/demo-family/",
        "examples/demo-tiers/",
        "api/http/page/",
        "api/http/grafana.json",
    )
    assert {f"blockwright/{name}" for name in files if name.startswith(shipped)} < every, "the demo and the page are there"


@claim("The architecture page draws all rooms and names files that exist", of="code-and-tests")
def test_the_architecture_page_draws_the_rooms_and_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = page.split("```")[1]
    rooms, layer = set(), ""
    for line in drawn.splitlines()[1:]:
        if line.startswith("  "):
            rooms |= {f"blockwright.{layer}.{room}" for room in re.findall(r"(\w+)/", re.split(r"  +", line.strip())[0])}
        else:
            layer = line.partition("/")[0]
    assert rooms == {name for name in packages_on_disk() if name.count(".") == 2}
    layers = {name.split(".")[1] for name in packages_on_disk() if "." in name}
    named = {name for name in re.findall(r"`([\w./-]+)`", page) if name.partition("/")[0] in {*layers, "tests", "docs"}}
    assert "policies/sweep/state.py" in named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
