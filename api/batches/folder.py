"""Files of batches on disk: written under a temporary name, synced, and renamed, so that a file is complete or absent.

The writer of a file holds a lock on it (``flock``), which the kernel releases when its process dies. So a file without a
lock and without a row in the store was left behind by a dead process; ``sweep`` deletes it. No SQL here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ...gpu.whole_file import sync_folder

_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
PART = ".part"  # suffix of a file until it is complete
RUNNER = "runner.lock"  # lock of the process that runs batches
SERVER = "server.lock"  # lock of the head of the one server that uses the folder


class PartFile:
    """A file that is being written. ``keep`` completes it; ``close`` ends it in any case. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(path.name + PART)
        self._kept = False
        self.file = self._opened()

    def _opened(self) -> BinaryIO:
        """Return the file, locked and still in its place: ``sweep`` may have deleted it in between."""
        while True:
            file: BinaryIO = os.fdopen(os.open(self._part, _NEW, 0o600), "w+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._part).st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            file.close()

    def keep(self) -> int:
        """Complete the file on the disk and return its size. The lock is held until ``close``."""
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        os.rename(self._part, self.path)
        sync_folder(self.path.parent)
        self._kept = True
        return size

    def close(self) -> None:
        """Close the file, and delete it if it was not kept. Idempotent."""
        if self.file.closed:
            return
        try:
            if not self._kept:
                self._part.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):  # unwritten data is not needed
                self.file.close()


class FolderLock:
    """A lock that one of all processes sharing a folder holds.

    ``name``: the file in the folder that carries the kernel's lock. It contains the process number of the current or last
    holder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file: BinaryIO | None = None

    def claim(self) -> bool:
        """Return True if this process holds the lock, now or already."""
        if self._file is None:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return False
            self._file = file
            with contextlib.suppress(OSError):  # a full disk; the lock holds regardless
                file.write(b"%-20d\n" % os.getpid())
        return True

    @property
    def holder(self) -> str:
        """The process number of the holder, as text; empty if unknown."""
        try:
            return self._path.read_text(errors="replace")[:20].strip()
        except OSError:
            return ""

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def sweep(folder: Path, known: Callable[[str], bool]) -> list[str]:
    """Delete the files of ``folder`` that are not ``known`` by name and that no process writes; return their names.

    Anything else than a regular file (a folder, a link, a pipe) is not ours and stays.
    """
    gone = []
    for path in sorted(folder.iterdir()):
        if known(path.name):
            continue
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # it is being written
            if known(path.name):
                continue  # it has been completed in the meantime
            path.unlink()
            gone.append(path.name)
    return gone
