"""Changes of a zoo's folder: one writer at a time, and every change is atomic.

A file is written in ``tmp``, forced to the disk and renamed. A writer that dies leaves only garbage behind: files in
``tmp``, which the next writer deletes, and tensors that no application names, which garbage collection (``gc``) deletes. A
writer that fails undoes its changes. Readers need no lock. ``step`` is called before each operation with a word for it;
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
from .layout import CHAIN, MIRROR_OF, OWN, Layout

Step = Callable[[str], None]
Waiting = Callable[[], None]  # called once if another writer must be waited for


class Disk:
    """The zoo's folder as its only writer sees it. Made by ``writing``."""

    def __init__(self, layout: Layout, step: Step) -> None:
        self.layout = layout
        self._step = step
        self._made: list[Path] = []  # paths to remove after a failure, in order
        self._dirty: set[Path] = set()  # folders whose entries may not be on the disk yet

    def folder(self, path: Path) -> None:
        """Create a folder, unless it exists."""
        if not path.is_dir():
            self._step("mkdir")
            path.mkdir()
            self._dirty.add(path.parent)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a whole file, replacing the old one if there is one."""
        fresh = not os.path.lexists(path)
        self._write(self.layout.tmp / "file", pieces)
        if fresh:
            self._made.append(path)
        self._step("rename")
        os.rename(self.layout.tmp / "file", path)
        self._dirty.add(path.parent)

    def rely_on(self, path: Path) -> None:
        """Note that an existing file is needed.

        Its name must be on the disk, too, and the writer that made it may have died before that.
        """
        self._dirty.add(path.parent)

    def stage_chain(self, document: bytes, links: dict[str, Path]) -> None:
        """Make the folder of an application in ``tmp``: its document, and links to files of the zoo, by name."""
        stage = self.layout.tmp / "chain"
        self.folder(stage)
        self._write(stage / CHAIN, [document])
        for name, target in links.items():
            self._step("symlink")
            os.symlink(link_text(self.layout, target), stage / name)
        self._dirty.add(stage)

    def commit_chain(self, name: str) -> None:
        """Publish the staged application, after everything written before it is on the disk."""
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
        """Delete everything in ``tmp``. There is no other writer, so all of it is garbage."""
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
        """Force renames to the disk, so that they survive a power failure."""
        for path in sorted(self._dirty):
            self._step("sync")
            sync_folder(path)
        self._dirty.clear()

    def take_back(self) -> None:
        """Undo changes after a failure, the last first. What cannot be undone is garbage."""
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
    """Return the target of a link in an application's folder: relative, so that a zoo can be moved and copied."""
    return os.path.join("..", "..", target.relative_to(layout.root))


@contextlib.contextmanager
def writing(root: Path, *, create: bool = False, waiting: Waiting | None = None, step: Step | None = None) -> Iterator[Disk]:
    """Yield the only writer of the zoo at ``root``. With ``create``, make the zoo if there is none.

    Raises ZooError if the folder is not a zoo, and StorageError if the file system refuses; the zoo is unchanged then.
    """
    layout = Layout(root)
    disk = Disk(layout, step or (lambda word: None))
    lock, ours = -1, False  # nothing may be touched before the folder is known to be a zoo, and the lock is held
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
            os.close(lock)  # releases the lock


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes when a file or folder is replaced; None while there is none."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def check_zoo(layout: Layout) -> None:
    """Raise ZooError unless the folder is a zoo that this program reads."""
    if not layout.mark.is_file():
        raise ZooError(f"{layout.root} is not a zoo: it has no {layout.mark.name}; make one with 'blockwright zoo add'")
    read_document(layout.mark)


def is_mirror(layout: Layout) -> bool:
    """Return whether the tensors of a zoo are elsewhere (``mirror.py``). Raises ZooError and OSError."""
    return MIRROR_OF in read_document(layout.mark)


def _may_become(layout: Layout) -> None:
    """Raise ZooError for a folder with foreign files, which must not become a zoo."""
    strange = [entry.name for entry in _entries(layout.root) if entry.name not in OWN]
    if strange and not layout.mark.exists():
        raise ZooError(f"{layout.root} is not a zoo and holds other files ({strange[0]}); name an empty or a new folder")


def _found(disk: Disk) -> None:
    """Create the folders, and last the file that makes them a zoo."""
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
