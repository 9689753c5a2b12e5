"""Import names of classes and functions, also of those that stand in the script that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.runtime.base.names import import_name
from blockwright.tests.parts import some


class Thing: ...


def test_what_a_module_has_is_found_by_its_name() -> None:
    assert import_name(Path) == "pathlib:Path"
    assert import_name(Path.joinpath) == "pathlib:PurePath.joinpath"


def test_what_is_inside_a_function_is_not() -> None:
    class Inner: ...

    with pytest.raises(ValueError, match="move it to the top of a module"):
        import_name(Inner)


SHOW = """
from blockwright.runtime.base.names import import_name
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


UNGUARDED = """
from blockwright.runtime import Actor, LocalCluster, RemoteError, endpoint, run
import asyncio, sys

class Greeter(Actor):
    @endpoint
    async def greet(self) -> str:
        return "hello"

async def main():
    async with LocalCluster(1) as cluster:
        try:
            print(await (await cluster.node.spawn(Greeter, name="greeter", on="w0")).greet())
        except RemoteError as error:
            print(error)

"""


@pytest.mark.parametrize("start", some(["run(main())", "asyncio.run(main())"], "run(main())"))
def test_a_script_without_a_guard_gets_the_remedy_and_does_not_multiply(tmp_path: Path, start: str) -> None:
    (tmp_path / "bare.py").write_text(UNGUARDED + start)
    (tmp_path / "guarded.py").write_text(UNGUARDED + f'if __name__ == "__main__":\n    {start}')
    assert said(["guarded.py"], tmp_path) == "hello"
    outcome = said(["bare.py"], tmp_path)
    assert "another process imports bare to find what it defines" in outcome
    assert outcome.endswith('put what it runs below: if __name__ == "__main__":')
