"""The eviction order of cached KV pages, with their slot counts: early pages first, then all others; LRU in each kind."""

from __future__ import annotations

from collections.abc import Iterator

from .copy_on_write import CopyOnWriteList


class IdlePages:
    """Handles of idle pages in eviction order, and their slots by layout.

    Pages to be given up early come first: those of offline accounts, for which no client waits, and redundant ones,
    which another worker has, too. Each kind is ordered by release. It is a doubly linked list in two columns (place =
    handle + 1, place 0 is both ends), because pages leave from the middle when they are shared again, and because
    columns fork fast.
    """

    def __init__(self) -> None:
        self._after = CopyOnWriteList([0])  # -1: not idle
        self._before = CopyOnWriteList([0])
        self._early = 0  # place of the last early page; 0: none
        self.slots: dict[str, int] = {}  # by arena
        self.early_slots: dict[str, int] = {}  # slots of early pages among these
        self.count = 0

    def add_layout(self, arena: str) -> None:
        """Add an arena whose pages may come."""
        self.slots[arena] = self.early_slots[arena] = 0

    def add(self, handle: int, arena: str, slots: int, *, early: bool = False) -> None:
        """Add a page that has lost its last reader: the most recently used one of its kind."""
        place = handle + 1
        after = self._after
        before = self._before
        self._reach(place)
        last = self._early if early else before[0]
        following = after[last]
        after[last] = before[following] = place
        before[place], after[place] = last, following
        self.count += 1
        self.slots[arena] += slots
        if early:
            self._early = place
            self.early_slots[arena] += slots

    def _reach(self, place: int) -> None:
        """Extend both columns to a place."""
        for _ in range(len(self._after), place + 1):
            self._after.append(-1)
            self._before.append(-1)

    def insert(self, handle: int, after: int) -> None:
        """Insert a handle right behind another, of which it was a part. Its slots are counted already."""
        place = handle + 1
        left = after + 1
        following = self._after
        before = self._before
        self._reach(place)
        right = following[left]
        following[left], before[right] = place, place
        following[place], before[place] = right, left
        self.count += 1
        if self._early and left == self._early:
            self._early = place

    def remove(self, handle: int, arena: str, slots: int, *, early: bool = False) -> None:
        """Remove a page. ``early``: as in ``add``."""
        place = handle + 1
        after = self._after
        before = self._before
        left, right = before[place], after[place]
        assert right >= 0, f"page {handle} is not idle"
        after[left], before[right] = right, left
        after[place] = before[place] = -1
        self.count -= 1
        self.slots[arena] -= slots
        if early:
            self.early_slots[arena] -= slots
            if place == self._early:
                self._early = left

    def __contains__(self, handle: int) -> bool:
        return handle + 1 < len(self._after) and self._after[handle + 1] >= 0

    def __iter__(self) -> Iterator[int]:
        """Iterate oldest first. Pages may be removed once passed. It ends even if the order is broken."""
        place = self._after[0]
        for _ in range(len(self._after)):
            if not place:
                return
            following = self._after[place]
            yield place - 1
            place = following

    def check(self) -> None:
        """Raise AssertionError unless the two columns agree and hold idle pages only."""
        self._after.check()
        self._before.check()
        order = list(self)
        assert len(self._after) == len(self._before), "a page has a place in one column"
        assert [self._before[h + 1] - 1 for h in order] == [-1, *order][:-1], "the order of idle pages is broken"
        assert self._before[0] - 1 == (order[-1] if order else -1), "the last idle page is lost"
        rest = set(range(1, len(self._after))) - {h + 1 for h in order}
        assert all(self._after[place] == self._before[place] == -1 for place in rest), "a page is half idle"
        assert len(order) == self.count, "idle pages are counted wrongly"
        assert not self._early or self._early - 1 in order, "the last page that goes early is not idle"

    def early(self) -> list[int]:
        """Return the early pages, in their order."""
        order = list(self)
        return order[: order.index(self._early - 1) + 1] if self._early else []

    def fork(self) -> IdlePages:
        copy = IdlePages()
        copy._after, copy._before = self._after.fork(), self._before.fork()
        copy.slots = self.slots.copy()
        copy.early_slots = self.early_slots.copy()
        copy.count = self.count
        copy._early = self._early
        return copy
