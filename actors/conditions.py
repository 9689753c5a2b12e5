"""Conditions: waiting for a condition on an actor's state without polling. Checked after every event of the actor.

Owns the waiters of one actor, and values that one actor publishes to others of its process. Knows nothing of their meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Conditions:
    """The waiters of one actor."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, now or after some event."""
        if not condition():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append((condition, waiting))
            await waiting

    def tick(self) -> None:
        """Complete the waiters whose condition holds now. Called whenever the state may have changed."""
        for entry in self._waiting[:]:
            condition, waiting = entry
            if waiting.done() or condition():
                self._waiting.remove(entry)
                if not waiting.done():
                    waiting.set_result(None)


class Published(Generic[T]):
    """The last value that its owner has published.

    The value is immutable, so reading it is not reading another actor's state.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._conditions = Conditions()

    @property
    def value(self) -> T:
        return self._value

    def publish(self, value: T) -> None:
        """Publish a value. Only the owner may call this."""
        if value != self._value:
            self._value = value
            self._conditions.tick()

    async def until(self, condition: Callable[[T], bool]) -> T:
        """Wait for the first value, from now on, that satisfies the condition, and return it."""
        await self._conditions.until(lambda: condition(self._value))
        return self._value
