"""Which ranges of a fixed space are taken: first fit from the start, neighbours joined when they come back.

Owns offsets and lengths in granules; holds no memory. First fit keeps what is in use at the start of the space, so that the
memory behind it stays warm and the rest is never touched.
"""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Ranges of ``size`` granules, numbered from 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._starts = [0] if size else []  # of free ranges, ascending
        self._lengths = {0: size} if size else {}

    def take(self, length: int) -> int | None:
        """Start of a range of ``length`` granules; None where no free range is long enough."""
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

    def fork(self) -> Extents:
        copy = Extents(self.size)
        copy.free, copy._starts, copy._lengths = self.free, list(self._starts), dict(self._lengths)
        return copy

    def give_back(self, start: int, length: int) -> None:
        """A range that was taken, whole or in part, is free. ValueError where some of it is free already."""
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
