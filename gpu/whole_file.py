"""Atomic file writes: a file is written beside its place, forced to the disk, and put there by one rename."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file in place of the old one, if any. ``mode``: its permissions, subject to the process's mask.

    Whatever ends the program or the machine, either the old file or the new one is there. Raises OSError; the old one is
    there then.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk. Otherwise a power failure may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
