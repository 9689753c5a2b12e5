"""A bounded mailbox with two priorities; the urgent lane is always emptied first.

Owns order (first in, first out within a lane) and the bound, which is tested before a message enters. Never waits: a full
lane is an answer, so that two actors that write to each other cannot deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """``limit`` messages in each lane."""

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"a mailbox of {limit!r} messages holds nothing; give a number, at least 1")
        self.limit = limit
        self.normal: deque[T] = deque()
        self.urgent: deque[T] = deque()

    def put(self, message: T, *, urgent: bool = False, beyond: float = 0) -> bool:
        """Add a message; return False if the lane is full. ``beyond``: the number above the limit that may enter."""
        lane = self.urgent if urgent else self.normal
        if len(lane) >= self.limit + beyond:
            return False
        lane.append(message)
        return True

    def take(self) -> T | None:
        """Take the next message, or None."""
        if self.urgent:
            return self.urgent.popleft()
        return self.normal.popleft() if self.normal else None

    def discard(self, over: Callable[[T], bool]) -> None:
        """Take out the messages of which this is true."""
        for lane in (self.normal, self.urgent):
            keep = [message for message in lane if not over(message)]
            lane.clear()
            lane.extend(keep)

    def drain(self) -> list[T]:
        """Everything, in the order in which ``take`` would give it."""
        out = [*self.urgent, *self.normal]
        self.urgent.clear()
        self.normal.clear()
        return out

    def __len__(self) -> int:
        return len(self.normal) + len(self.urgent)
