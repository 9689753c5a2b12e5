import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def entries(monkeypatch):
    """Makes ``cluster_entries`` importable here and, since a launcher passes ``sys.path`` on, in child processes."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("the condition never held")


@pytest.fixture(name="until")
def until_fixture():
    return until
