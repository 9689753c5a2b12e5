"""Opening of files of checkpoints, adapters and zoos: regular files only, so that no read waits for a pipe for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .errors import CheckpointError

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


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
            raise CheckpointError(f"{path} is {kind}; put the checkpoint's file there")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes. Raises OSError and CheckpointError."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(size) if size <= most else b""
    if size > most:
        raise CheckpointError(f"{path} is too long ({size} bytes, more than {most}); download or save the checkpoint again")
    return raw
