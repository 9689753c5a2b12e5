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
SHORTEST, LONGEST = 0.002, 0.02  # seconds between two looks


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    """The first true value of ``condition()``, which may be a coroutine; AssertionError when it takes for ever."""
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        pause = _pause(began, looked)
        assert pause, f"not within {PATIENCE:g} s: {what or inspect.getsource(condition).strip()}"
        await asyncio.sleep(pause)


def until_now(condition: Callable[[], Any], what: str) -> None:
    """The same where no loop runs."""
    began = looked = time.monotonic()
    while not condition():
        pause = _pause(began, looked)
        assert pause, f"not within {PATIENCE:g} s: {what}"
        time.sleep(pause)
        looked = time.monotonic()


def _pause(began: float, looked: float) -> float:
    """Until the next look, 0 when it is too late. What is expensive to look at, or takes long, is looked at less often, so
    that waiting leaves the processor to what is waited for."""
    now = time.monotonic()
    return 0.0 if now - began > PATIENCE else min(max(SHORTEST, 4 * (now - looked), 0.02 * (now - began)), LONGEST)
