"""Errors of a zoo. Standard library only.

ZooError            the caller's: an invalid name, folder or model
+-- ZooDamaged      a stored file was altered
+-- StorageError    the machine's: the disk is full, read-only, or does not permit it
+-- OriginError     a zoo elsewhere cannot be read
"""

from __future__ import annotations

import errno
from pathlib import Path

from ..gpu.errors import CheckpointError

_REMEDIES = {
    errno.ENOSPC: "free some room on that disk",
    errno.EDQUOT: "free some room in your quota",
    errno.EROFS: "the disk is read-only; name a zoo that can be written",
    errno.ELOOP: "it is a link that leads to itself; mend it or name another zoo",
    errno.EACCES: "you may not write there; change its permissions or name another zoo",
    errno.EPERM: "you may not write there; change its permissions or name another zoo",
}


class ZooError(CheckpointError):
    """An error of the caller, in one sentence for the person who asked; the zoo is unchanged."""


class ZooDamaged(ZooError):
    """A stored file was altered."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(f"{path} is damaged: expected {expected}, found {found}; run 'blockwright zoo verify'")
        self.path = path
        self.expected = expected
        self.found = found


class StorageError(ZooError):
    """The file system refuses an operation."""

    @classmethod
    def of(cls, error: OSError, root: Path) -> StorageError:
        remedy = _REMEDIES.get(error.errno or 0, "check the disk")
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return cls(f"zoo {root} cannot be used ({what}); {remedy}; the zoo is as it was")


class OriginError(ZooError):
    """A zoo elsewhere cannot be read, or what it gave is not what was asked for."""
