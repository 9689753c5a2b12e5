"""Waiting in tests: until something holds, never until a time has passed.

Owns the only bound of seconds that tests have. It catches what hangs and says nothing of how fast anything is, so it is far
longer than the slowest machine needs: no test may fail because its machine is busy. ``test_architecture.py`` checks that no
test looks at a clock of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0  # seconds; below pytest's faulthandler_timeout, so that a wait that fails says what it waited for


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true value of ``condition()``, which may be a coroutine; AssertionError when it takes for ever."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what or inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.002)


def until_now(condition: Callable[[], Any], what: str) -> None:
    """The same where no loop runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.002)
