"""The lines of a file of requests, indexed once and read one at a time: the file is never in memory as a whole."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path


class InputFile:
    """A file of requests. ``file[i]``: line i of the non-empty ones, from 0.

    The constructor raises OSError; ``close`` ends the file.
    """

    def __init__(self, path: Path) -> None:
        starts = array("Q")
        lengths = array("Q")
        numbers = array("Q")
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    starts.append(offset)
                    lengths.append(len(line))
                    numbers.append(number)
                offset += len(line)
        self._starts = starts
        self._lengths = lengths
        self._numbers = numbers
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, line: int) -> bytes:
        """Return a line. Raise OSError."""
        return os.pread(self._file, self._lengths[line], self._starts[line])

    def __iter__(self) -> Iterator[bytes]:
        return (self[line] for line in range(len(self)))

    def number(self, line: int) -> int:
        """Return the number of a line in an editor: from 1, counting empty lines."""
        return self._numbers[line]

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
