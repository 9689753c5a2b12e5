"""Waiting for a condition on an actor's state without polling: the actor looks after every event.

Owns the waiters of one actor, and values that one actor publishes to others of its process. Knows nothing of what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


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

    def tick(self) -> None:
        """The state may have changed."""
        for entry in self._waiting[:]:
            condition, waiting = entry
            if waiting.done() or condition():
                self._waiting.remove(entry)
                if not waiting.done():
                    waiting.set_result(None)


class Published(Generic[T]):
    """The last value that its owner has published: an immutable one, so that whoever reads it reads no actor's state."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._conditions = Conditions()

    @property
    def value(self) -> T:
        return self._value

    def publish(self, value: T) -> None:
        """The owner's alone."""
        if value != self._value:
            self._value = value
            self._conditions.tick()

    async def until(self, condition: Callable[[T], bool]) -> T:
        """The first value, from now on, of which the condition holds."""
        await self._conditions.until(lambda: condition(self._value))
        return self._value
