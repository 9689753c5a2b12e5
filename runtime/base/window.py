"""Flow control of streams: the window by which a producer may run ahead of its consumer, in items and bytes.

Owns the producer's counts and its wait for room. Counts are totals since the start, so a duplicate does no harm and the
next one makes up for one that was lost.
"""

from __future__ import annotations

import asyncio

WINDOW_ITEMS = 256  # sent and not yet taken by the consumer; half of it is what a word of credit is sent for
WINDOW_BYTES = 4 << 20  # likewise; the last item may go beyond it


class Window:
    """``items`` and ``size`` (bytes) may be on their way or wait unread."""

    __slots__ = ("_bytes", "_items", "_sent_bytes", "_taken_bytes", "_taken_items", "_waiter", "sent")

    def __init__(self, items: int, size: int) -> None:
        self._items, self._bytes = items, size
        self.sent = self._sent_bytes = self._taken_items = self._taken_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def open(self) -> bool:
        """True while one more item may be made."""
        return self.sent - self._taken_items < self._items and self._sent_bytes - self._taken_bytes < self._bytes

    def send(self, size: int) -> None:
        self.sent += 1
        self._sent_bytes += size

    def taken(self, items: int, size: int) -> None:
        """Set the totals that the consumer has taken; impossible values (a faulty peer's) are cut to the totals sent."""
        self._taken_items = max(self._taken_items, min(items, self.sent))
        self._taken_bytes = max(self._taken_bytes, min(size, self._sent_bytes))
        if self._waiter is not None and self.open and not self._waiter.done():
            self._waiter.set_result(None)

    async def room(self) -> None:
        """Wait until ``open``."""
        while not self.open:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
