"""The lines of a file of requests, found once and read one at a time: the file is never in memory as a whole."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path


class InputFile:
    """``file[i]``: line i, from 0, of those that are not empty. Raises OSError when made; ``close`` ends it."""

    def __init__(self, path: Path) -> None:
        starts, lengths, numbers = array("Q"), array("Q"), array("Q")
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    starts.append(offset)
                    lengths.append(len(line))
                    numbers.append(number)
                offset += len(line)
        self._starts, self._lengths, self._numbers = starts, lengths, numbers
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, line: int) -> bytes:
        """Raises OSError."""
        return os.pread(self._file, self._lengths[line], self._starts[line])

    def __iter__(self) -> Iterator[bytes]:
        return (self[line] for line in range(len(self)))

    def number(self, line: int) -> int:
        """As an editor counts, from 1, empty ones included."""
        return self._numbers[line]

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
