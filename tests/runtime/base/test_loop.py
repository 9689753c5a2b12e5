import asyncio
import sys

import pytest

from blockwright.runtime.base.loop import loop_factory, run


def test_uvloop_is_used_where_it_is():
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main()) == "uvloop"


def test_and_is_not_required(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = loop_factory()()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_errors_pass_through():
    async def main() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        run(main())
