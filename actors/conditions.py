"""Waiting for a condition on an actor's state without polling: the actor looks after every event.

Owns the waiters of one actor; knows nothing of what they wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Conditions:
    """One per actor."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, now or after some event."""
        if not condition():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append((condition, waiting))
            await waiting

    def look(self) -> None:
        """The state may have changed."""
        for entry in self._waiting[:]:
            condition, waiting = entry
            if waiting.done() or condition():
                self._waiting.remove(entry)
                if not waiting.done():
                    waiting.set_result(None)
