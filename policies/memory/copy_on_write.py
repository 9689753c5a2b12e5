"""A copy-on-write list: forks share its blocks, without touching the entries, and the first writer copies a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

T = TypeVar("T")
# Final, so that the compiled code has the numbers inline: looked up at each access they took 3 to 6 % of a simulation.
SHIFT: Final = 8
BLOCK: Final = 256  # 1 << SHIFT entries: a copy after a fork is short, a fork of 30,000 entries copies 130 references
PLACE: Final = 255  # BLOCK - 1


class CopyOnWriteList(Generic[T]):
    """A list that grows, in blocks of ``BLOCK`` entries.

    A column of all pages of a large cache has some 30,000 entries. A plain copy counts one more reference to each, all
    over the memory, and gets fresh pages of memory from the system each time. Several such copies would cost a forecast
    milliseconds, yet it reads a few entries and changes fewer.
    """

    def __init__(self, values: Iterable[T] = ()) -> None:
        entries = list(values)
        self._blocks: list[list[T]] = [entries[at : at + BLOCK] for at in range(0, len(entries), BLOCK)]
        self._owned: list[bool] = [True] * len(self._blocks)  # False: a fork reads the block too

    def __len__(self) -> int:
        return ((len(self._blocks) - 1) << SHIFT) + len(self._blocks[-1]) if self._blocks else 0

    def __getitem__(self, index: int) -> T:
        """Return an entry; ``index`` is not negative."""
        return self._blocks[index >> SHIFT][index & PLACE]

    def __setitem__(self, index: int, value: T) -> None:
        number = index >> SHIFT
        if not self._owned[number]:
            self._own(number)
        self._blocks[number][index & PLACE] = value

    def append(self, value: T) -> None:
        last = len(self._blocks) - 1
        if last < 0 or len(self._blocks[last]) == BLOCK:
            self._blocks.append([value])
            self._owned.append(True)
            return
        if not self._owned[last]:
            self._own(last)
        self._blocks[last].append(value)

    def _own(self, number: int) -> None:
        self._blocks[number] = self._blocks[number].copy()
        self._owned[number] = True

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._blocks)

    def fork(self) -> CopyOnWriteList[T]:
        """Return an independent copy."""
        copy: CopyOnWriteList[T] = CopyOnWriteList()
        copy._blocks = self._blocks.copy()
        self._owned, copy._owned = [False] * len(self._blocks), [False] * len(self._blocks)
        return copy

    def check(self) -> None:
        """Raise AssertionError unless all blocks but the last are full and each has a known owner."""
        assert all(len(block) == BLOCK for block in self._blocks[:-1]), "a block is not full"
        assert all(0 < len(block) <= BLOCK for block in self._blocks[-1:]), "the last block is empty or too long"
        assert len(self._owned) == len(self._blocks), "a block is neither owned nor shared"
