"""A shared memory budget for request bodies while they are read and parsed.

A small body is not counted. A large one waits for its share, so that many clients that send large bodies at once cost time
and not memory. One caller gets at most half of the budget.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import ApiError

SMALL = 1 << 18  # bytes; a body up to this size is not counted


class BodyMemory:
    """The bytes that request bodies hold, by caller. ``limit``: limit for all bodies together."""

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._held: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @property
    def held(self) -> int:
        return self._held.total()

    @asynccontextmanager
    async def share(self, caller: str, size: int, seconds: float) -> AsyncIterator[None]:
        """Hold ``size`` bytes for a caller while the block runs; raise a 503 if they are not free within ``seconds``."""
        if size <= SMALL:
            yield
            return
        size = min(size, self._most // 2)
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._fits(caller, size))
                self._held[caller] += size
        except TimeoutError:
            message = f"the bodies of other requests fill the {self._most} bytes that there are for them; try again"
            raise ApiError(503, message, retry_after=1.0) from None
        try:
            yield
        finally:
            async with self._changed:
                self._held[caller] -= size
                self._changed.notify_all()

    def _fits(self, caller: str, size: int) -> bool:
        return self.held + size <= self._most and self._held[caller] + size <= self._most // 2
