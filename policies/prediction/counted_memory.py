"""KV pages as counts for lazy replays: free pages, and cached ones in their eviction order."""

from __future__ import annotations

from collections import deque


class CountedMemory:
    """Pages of one size. Cached pages have no owner, or belong to a preempted sequence that may find them again."""

    def __init__(self, free: int, cached: int) -> None:
        self.free = free
        self.gone = 0  # pages no longer cached: evicted or listed again
        self._cached: deque[list[int]] = deque([[0, cached]])  # [owner (0: none), pages]; oldest first
        self.room = free + cached  # pages that can be taken

    def allocate(self, pages: int) -> bool:
        """Take pages at the cost of cached ones; return False and take none if there are too few."""
        if pages > self.room:
            return False
        self.room -= pages
        self.free -= pages
        while self.free < 0:
            oldest = self._cached[0]
            gone = min(oldest[1], -self.free)
            oldest[1] -= gone
            self.free += gone
            self.gone += gone
            if not oldest[1]:
                self._cached.popleft()
        return True

    @property
    def cached(self) -> int:
        return self.room - self.free

    def give_back(self, pages: int, cached: int, owner: int = 0) -> None:
        """Return pages, of which ``cached`` stay as cache."""
        self.room += pages
        self.free += pages - cached
        if cached:
            self._cached.append([owner, cached])

    def pin(self, pages: int) -> None:
        """List ``pages`` cached pages without owner again."""
        self.room -= pages
        self.gone += pages
        for part in self._cached if pages else ():
            if not part[0]:
                found = min(pages, part[1])
                part[1] -= found
                pages -= found

    def wake(self, owner: int, most: int) -> int:
        """List the leading pages of a sequence that are still cached again, at most ``most``; return how many."""
        for part in self._cached:
            if part[0] == owner:
                found = min(part[1], most)
                part[0], part[1] = 0, part[1] - found
                self.room -= found
                self.gone += found
                return found
        return 0
