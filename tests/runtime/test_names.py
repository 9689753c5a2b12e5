"""Import names of classes and functions, also of those that stand in the script that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.runtime.names import import_name


class Thing: ...


def test_what_a_module_has_is_found_by_its_name() -> None:
    assert import_name(Path) == "pathlib:Path"
    assert import_name(Path.joinpath) == "pathlib:PurePath.joinpath"


def test_what_is_inside_a_function_is_not() -> None:
    class Inner: ...

    with pytest.raises(ValueError, match="move it to the top of a module"):
        import_name(Inner)


SHOW = """
from blockwright.runtime.names import import_name
class Thing: ...
try:
    print(import_name(Thing))
except ValueError as error:
    print(error)
"""


def said(command: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_is_in_a_script_is_found_by_the_scripts_name(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOW)
    (tmp_path / "my-shop.py").write_text(SHOW)
    assert said(["shop.py"], tmp_path) == "shop:Thing"
    assert said(["-m", "shop"], tmp_path) == "shop:Thing"
    assert "move it to the top of a module" in said(["my-shop.py"], tmp_path)
    assert "move it to the top of a module" in said(["-c", SHOW], tmp_path)
