"""Opening of files of checkpoints, adapters, zoos and settings: regular files only, so that no read waits for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .errors import CheckpointError

LONGEST_PLAIN = 64 << 20  # bytes of a file of settings, keys, costs or the like
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class IrregularFileError(CheckpointError):
    """An error for a path at which there is no regular file. ``kind``: what is there."""

    def __init__(self, path: str | Path, kind: str) -> None:
        super().__init__(f"{path} is {kind}; put the checkpoint's file there")
        self.kind = kind


def open_regular(path: str | Path) -> int:
    """Return a file descriptor to read a regular file. Raises OSError, and CheckpointError for any other kind."""
    # O_NONBLOCK: opening a pipe without a writer would wait for one
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "no file")
            raise IrregularFileError(path, kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes. Raises OSError and CheckpointError."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(size) if size <= limit else b""
    if size > limit:
        raise CheckpointError(f"{path} is too long ({size} bytes, more than {limit}); download or save the checkpoint again")
    return raw


def open_plain(path: str | Path) -> int:
    """Return a file descriptor to read a regular file that is no checkpoint's. Raises OSError for any other kind."""
    try:
        return open_regular(path)
    except IrregularFileError as error:
        raise OSError(errno.EINVAL, f"it is {error.kind}, not a regular file", str(path)) from None


def read_plain(path: str | Path, limit: int = LONGEST_PLAIN) -> str:
    """Return the text of a regular file of at most ``limit`` bytes. Raises OSError, and UnicodeDecodeError."""
    with open(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(size) if size <= limit else b""
    if size > limit:
        raise OSError(errno.EFBIG, f"it has {size} bytes, more than {limit}", str(path))
    return raw.decode("utf-8")
