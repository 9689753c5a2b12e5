"""Every change of a zoo's folder: one writer at a time, and nothing is seen before it is whole.

A file is written in ``tmp``, forced to the disk and renamed. What a writer that dies leaves behind is garbage: files in
``tmp``, which the next writer deletes, and tensors that no application names, which garbage collection (``gc``) deletes. A
writer that fails takes back what it made. Readers need no lock. ``step`` is called before each operation with a word for it;
tests kill or fail there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..gpu.whole_file import sync_folder
from .documents import encode, read_document
from .errors import StorageError, ZooError
from .layout import CHAIN, OWN, Layout

Step = Callable[[str], None]
Waiting = Callable[[], None]  # is called once if another writer is to be waited for


class Disk:
    """The folder in the hands of its only writer. Made by ``writing``."""

    def __init__(self, layout: Layout, step: Step) -> None:
        self.layout = layout
        self._step = step
        self._made: list[Path] = []  # what a failure takes back, in order
        self._dirty: set[Path] = set()  # folders whose entries are not known to be on the disk

    def folder(self, path: Path) -> None:
        """Make it, unless it is there."""
        if not path.is_dir():
            self._step("mkdir")
            path.mkdir()
            self._dirty.add(path.parent)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """A whole file, in place of what may be there."""
        fresh = not os.path.lexists(path)
        self._write(self.layout.tmp / "file", pieces)
        if fresh:
            self._made.append(path)
        self._step("rename")
        os.rename(self.layout.tmp / "file", path)
        self._dirty.add(path.parent)

    def rely_on(self, path: Path) -> None:
        """A file that is there is needed: its name must be on the disk, too, which its writer may not have lived to see."""
        self._dirty.add(path.parent)

    def stage_chain(self, document: bytes, links: dict[str, Path]) -> None:
        """The folder of an application, in ``tmp``: its document and links to files of the zoo, by name."""
        stage = self.layout.tmp / "chain"
        self.folder(stage)
        self._write(stage / CHAIN, [document])
        for name, target in links.items():
            self._step("symlink")
            os.symlink(link_text(self.layout, target), stage / name)
        self._dirty.add(stage)

    def commit_chain(self, name: str) -> None:
        """Make it seen, after everything that was written before is on the disk."""
        self.sync()
        self._made.append(self.layout.chain(name))
        self._step("rename")
        os.rename(self.layout.tmp / "chain", self.layout.chain(name))
        self._dirty.add(self.layout.chains)
        self.sync()

    def remove_chain(self, name: str) -> None:
        self._step("rename")
        os.rename(self.layout.chain(name), self.layout.tmp / "chain")
        self._dirty.add(self.layout.chains)
        self.sync()
        self.clear_tmp()

    def delete(self, path: Path) -> None:
        self._step("unlink")
        path.unlink()

    def clear_tmp(self) -> None:
        """Nobody else writes, so whatever lies there is garbage."""
        for entry in _entries(self.layout.tmp):
            inner = _entries(entry) if entry.is_dir() and not entry.is_symlink() else []
            for path in inner:
                self.delete(path)
            if entry.is_dir() and not entry.is_symlink():
                self._step("rmdir")
                entry.rmdir()
            else:
                self.delete(entry)

    def sync(self) -> None:
        """What was renamed stays renamed when the power goes."""
        for path in sorted(self._dirty):
            self._step("sync")
            sync_folder(path)
        self._dirty.clear()

    def take_back(self) -> None:
        """After a failure: undo what can be undone, the last first. What cannot is garbage."""
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                if path.is_dir():
                    os.rename(path, self.layout.tmp / "chain")
                else:
                    path.unlink()
        with contextlib.suppress(OSError):
            self.clear_tmp()

    def _write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        self._step("create")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            for piece in pieces:
                self._step("write")
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            self._step("fsync")
            os.fsync(fd)
        finally:
            os.close(fd)


def link_text(layout: Layout, target: Path) -> str:
    """What a link in an application's folder says: relative, so that a zoo can be moved and copied."""
    return os.path.join("..", "..", target.relative_to(layout.root))


@contextlib.contextmanager
def writing(root: Path, *, create: bool = False, waiting: Waiting | None = None, step: Step | None = None) -> Iterator[Disk]:
    """The only writer of the zoo at ``root``, which ``create`` makes where there is none.

    Raises ZooError when it is no zoo, StorageError when the file system refuses; then the zoo is as it was.
    """
    layout = Layout(root)
    disk = Disk(layout, step or (lambda word: None))
    lock, ours = -1, False  # nothing may be touched before it is known to be a zoo, and nobody else's to write
    try:
        if create:
            _may_become(layout)
            root.mkdir(parents=True, exist_ok=True)
        else:
            check_zoo(layout)
        lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _acquire(lock, waiting)
        ours = True
        if create and not layout.mark.exists():
            _found(disk)
        check_zoo(layout)
        disk.clear_tmp()
        yield disk
    except OSError as error:
        if ours:
            disk.take_back()
        raise StorageError.of(error, root) from error
    except BaseException:
        if ours:
            disk.take_back()
        raise
    finally:
        if lock >= 0:
            os.close(lock)  # which releases it


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when somebody replaces a file or folder; None while there is none."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def check_zoo(layout: Layout) -> None:
    """Raises ZooError unless the folder is a zoo that this program reads."""
    if not layout.mark.is_file():
        raise ZooError(f"{layout.root} is not a zoo: it has no {layout.mark.name}; make one with 'blockwright zoo add'")
    read_document(layout.mark)


def _may_become(layout: Layout) -> None:
    """A folder of somebody else's files does not."""
    strange = [entry.name for entry in _entries(layout.root) if entry.name not in OWN]
    if strange and not layout.mark.exists():
        raise ZooError(f"{layout.root} is not a zoo and holds other files ({strange[0]}); name an empty or a new folder")


def _found(disk: Disk) -> None:
    """The folders, and last the file that makes them a zoo."""
    layout = disk.layout
    for folder in (layout.tmp, layout.tensors, layout.components, layout.deltas, layout.files, layout.chains):
        disk.folder(folder)
    disk.clear_tmp()
    disk.write(layout.mark, [encode({"hash": "blake2b-256"})])
    disk.sync()


def _acquire(lock: int, waiting: Waiting | None) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is not None:
            waiting()
        fcntl.flock(lock, fcntl.LOCK_EX)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
