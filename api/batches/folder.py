"""The files of batches on disk: written beside their place, synced, and renamed, so that a file is whole or not there.

Whoever writes one holds a lock on it (``flock``), which the kernel frees with its process: what has neither a lock nor a row
in the store was left behind by a death, and ``sweep`` deletes it. Knows no SQL.
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
PART = ".part"  # what a file is called until it is whole
RUNNER = "runner.lock"  # of the process that runs batches
SERVER = "server.lock"  # of the head of the one server that uses the folder


class PartFile:
    """A file that is being written. ``keep`` makes it whole; whatever happens, ``close`` ends it. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(path.name + PART)
        self._kept = False
        self.file = self._opened()

    def _opened(self) -> BinaryIO:
        """Locked, and still in its place: ``sweep`` may have come between."""
        while True:
            file: BinaryIO = os.fdopen(os.open(self._part, _NEW, 0o600), "w+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._part).st_ino == os.fstat(file.fileno()).st_ino:
                    return file
            file.close()

    def keep(self) -> int:
        """It is whole and on the disk from now on; its bytes. The lock stays until ``close``."""
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        os.rename(self._part, self.path)
        sync_folder(self.path.parent)
        self._kept = True
        return size

    def close(self) -> None:
        """Idempotent. What was not kept goes."""
        if self.file.closed:
            return
        try:
            if not self._kept:
                self._part.unlink(missing_ok=True)
        finally:
            with contextlib.suppress(OSError):  # what was not written is not missed
                self.file.close()


class FolderLock:
    """Held by one process of all that share a folder. ``name``: of a file there, by whose lock the kernel knows; it has the
    number of the process that holds it, or held it last."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file: BinaryIO | None = None

    def claim(self) -> bool:
        """Whether this process holds it, now or already."""
        if self._file is None:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return False
            self._file = file
            with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
                file.write(b"%-20d\n" % os.getpid())
        return True

    @property
    def holder(self) -> str:
        """The number of the process, as text; empty where it is not known."""
        try:
            return self._path.read_text(errors="replace")[:20].strip()
        except OSError:
            return ""

    def release(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def sweep(folder: Path, known: Callable[[str], bool]) -> list[str]:
    """Delete the files of ``folder`` that are not ``known`` by name and that nobody writes; their names. What is no file
    (a folder, a link, a pipe) is not ours and stays."""
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
                continue  # it has just been
            path.unlink()
            gone.append(path.name)
    return gone
