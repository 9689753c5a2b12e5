"""Running a coroutine in the current task with a copy of its context variables.

Owns one trick: the coroutine is stepped by hand within a copy of the task's context, so that context variables which it sets
(and tasks which it starts inherit) end with it. A task of its own would do the same for several times the cost; here
``current_task()``, ``asyncio.timeout()`` and cancellation are those of the task that awaits.
"""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


def first_step(coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> tuple[bool, Any]:
    """Run a coroutine's first step; return (True, its result), or (False, the awaited object) for ``rest``. Most messages
    need no more.
    """
    try:
        return False, context.run(coroutine.send, None)
    except StopIteration as stop:
        return True, stop.value


@types.coroutine
def rest(coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, waits: Any) -> Generator[Any, Any, Any]:
    """Await the result of a coroutine after its first step."""
    step: Callable[[Any], Any]
    while True:
        value: Any = None
        try:
            value = yield waits
            step = coroutine.send
        except BaseException as error:
            step, value = coroutine.throw, error
        try:
            waits = context.run(step, value)
        except StopIteration as stop:
            return stop.value
        finally:
            del value  # an exception must not keep the frames that it came through
