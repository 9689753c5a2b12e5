"""An allocator of ranges in a fixed space: first fit from the start, with adjacent free ranges merged.

Owns offsets and lengths in granules; holds no memory. First fit keeps used ranges at the start of the space, so that the
memory behind it stays warm and the rest is never touched.
"""

from __future__ import annotations

from bisect import bisect_left


class RangeAllocator:
    """Ranges of ``size`` granules, numbered from 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._starts = [0] if size else []  # starts of free ranges, ascending
        self._lengths = {0: size} if size else {}

    def allocate(self, length: int) -> int | None:
        """Return the start of a range of ``length`` granules; None if no free range is long enough."""
        if length < 1:
            raise ValueError(f"a range of {length} granules cannot be taken")
        for index, start in enumerate(self._starts):
            left = self._lengths[start] - length
            if left < 0:
                continue
            del self._lengths[start]
            if left:
                self._starts[index] = start + length
                self._lengths[start + length] = left
            else:
                del self._starts[index]
            self.free -= length
            return start
        return None

    def allocate_at(self, start: int, length: int) -> None:
        """Take a given free range, to restore a snapshot."""
        index = bisect_left(self._starts, start + 1) - 1
        first = self._starts[index] if index >= 0 else self.size
        rest = self._lengths.get(first, 0) - (start - first) - length
        if first > start or rest < 0:
            raise ValueError(f"granules {start} to {start + length} of {self.size} are not free")
        parts = [(first, start - first), (start + length, rest)]
        del self._lengths[first]
        self._starts[index : index + 1] = [place for place, size in parts if size]
        self._lengths.update({place: size for place, size in parts if size})
        self.free -= length

    def check(self, taken: list[tuple[int, int]]) -> None:
        """Raise AssertionError unless every granule is free or in one of ``taken`` (start, length), once."""
        ranges = sorted([*taken, *((start, self._lengths[start]) for start in self._starts)])
        ends = [start + length for start, length in ranges]
        assert [start for start, _ in ranges] == [0, *ends][: len(ranges)], "a range is lost or owned twice"
        assert [0, *ends][-1] == self.size, "a range is lost or owned twice"
        assert self._starts == sorted(self._lengths), "free ranges are out of order"
        assert self.free == sum(self._lengths.values()), "free granules are counted wrongly"

    def fork(self) -> RangeAllocator:
        copy = RangeAllocator(self.size)
        copy.free = self.free
        copy._starts = list(self._starts)
        copy._lengths = dict(self._lengths)
        return copy

    def give_back(self, start: int, length: int) -> None:
        """Free a taken range, whole or in part. Raises ValueError if some of it is free already."""
        index = bisect_left(self._starts, start)
        before = self._starts[index - 1] if index else -1
        after = self._starts[index] if index < len(self._starts) else self.size
        if start < 0 or length < 1 or (index and before + self._lengths[before] > start) or start + length > after:
            raise ValueError(f"granules {start} to {start + length} of {self.size} are not taken")
        self.free += length
        if index < len(self._starts) and after == start + length:
            length += self._lengths.pop(after)
            del self._starts[index]
        if index and before + self._lengths[before] == start:
            self._lengths[before] += length
        else:
            self._starts.insert(index, start)
            self._lengths[start] = length
