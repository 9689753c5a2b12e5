"""A bounded queue with two lanes; the urgent one is always emptied first.

Owns order (first in, first out within a lane) and the bound, which is tested before a message enters. Never waits: a full
lane is an answer, so that two actors that write to each other cannot deadlock.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """``limit`` messages in each lane."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a mailbox of {limit} messages holds nothing; give at least 1")
        self.limit = limit
        self._lanes: tuple[deque[T], deque[T]] = (deque(), deque())  # normal, urgent

    def put(self, message: T, *, urgent: bool = False, beyond: bool = False) -> bool:
        """False when the lane is full. beyond: let it in all the same (the actor asked for it, so it is bounded by that)."""
        lane = self._lanes[urgent]
        if len(lane) >= self.limit and not beyond:
            return False
        lane.append(message)
        return True

    def take(self) -> T | None:
        """The next message, or None."""
        for lane in reversed(self._lanes):
            if lane:
                return lane.popleft()
        return None

    def drain(self) -> list[T]:
        """Everything, in the order in which ``take`` would give it."""
        out = [*self._lanes[True], *self._lanes[False]]
        for lane in self._lanes:
            lane.clear()
        return out

    def __len__(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1])
