"""Store: a zoo on a worker's machine that keeps what came from elsewhere, each file by its hash.

Several workers may share one: a file appears whole, under its last name, and never changes. A store without room says so
once and keeps nothing more; what it does not keep lies in memory until it is loaded. Nothing here is trusted for lying here:
who loads a tensor compares it with its hash, and ``discard`` takes away one that differs.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from pathlib import Path

from ..gpu.errors import CheckpointError
from ..gpu.model.config import TensorRef
from ..gpu.regular_file import open_regular
from ..gpu.weights.identity import begin_hash
from ..policies.binary_size import binary_size
from .disk import writing
from .errors import OriginError, StorageError, ZooError
from .layout import TENSOR_NAME, Layout, tensor_header
from .records import StoredTensor

log = logging.getLogger(__name__)
ARRIVING = "arriving"  # how files in ``tmp`` begin that are not whole yet
IN_MEMORY = "/proc/self/fd/"  # how paths of tensors begin that lie in this process's memory
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Store:
    """The store in folder ``root`` (see the module). limit: bytes of its tensors; 0: what the disk has.

    full: why it keeps nothing more, or "".
    """

    def __init__(self, root: Path, limit: int = 0) -> None:
        self.layout = Layout(root)
        self.limit = limit
        self.used = sum(path.stat().st_size for path in self.layout.tensors.glob("*/*.safetensors"))
        self.full = ""
        self._lock = threading.Lock()  # of ``used``: tensors come on threads
        self._sweep()

    @classmethod
    def open(cls, root: str | Path, limit: int = 0, field: str = "store") -> Store:
        """Open the store in a folder, which is made if there is none. Raises ZooError: one sentence that names ``field``."""
        path = Path(root).expanduser()
        try:
            with_mark = Layout(path).mark.is_file()
            if not with_mark:
                with writing(path, create=True):
                    pass
            probe = path / "tmp" / f"probe-{os.getpid()}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            probe.unlink()
        except OSError as error:
            raise StorageError(
                f"{field} is {str(root)!r}, which cannot be written ({error.strerror}); give a folder that this user may "
                "write"
            ) from None
        except ZooError as error:
            raise ZooError(f"{field} is {str(root)!r}, which cannot be a store: {error}") from None
        return cls(path, limit)

    def _sweep(self) -> None:
        """Delete what earlier workers left half done. A file that a worker is writing is locked."""
        for path in self.layout.tmp.glob(f"{ARRIVING}-*"):
            try:
                fd = open_regular(path)
            except (OSError, CheckpointError):
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except OSError:
                continue
            finally:
                os.close(fd)

    def document(self, path: Path) -> bytes | None:
        """Return a small file by its path in a zoo, or None."""
        try:
            return (self.layout.root / path).read_bytes()
        except OSError:
            return None

    def keep_document(self, path: Path, raw: bytes) -> None:
        """Keep a small file, if there is room."""
        if self.full:
            return
        staged = self.layout.tmp / f"{ARRIVING}-{os.getpid()}-{path.name}"
        try:
            staged.write_bytes(raw)
            os.rename(staged, self.layout.root / path)
        except OSError as error:
            self.give_up(error)

    def find(self, tensor: StoredTensor) -> TensorRef | None:
        """Return the place of a tensor, or None if it is not here whole."""
        path, header = self.layout.tensor(tensor.hash), len(tensor_header(tensor.dtype, tensor.shape))
        try:
            if path.stat().st_size != header + tensor.nbytes:
                return None
        except OSError:
            return None
        return TensorRef(str(path), TENSOR_NAME, tensor.dtype, tensor.shape, header, tensor.nbytes)

    def holds(self, ref: TensorRef) -> bool:
        """Return whether a place is in this store."""
        return ref.path.startswith(f"{self.layout.tensors}{os.sep}")

    def discard(self, ref: TensorRef) -> None:
        """Take away a tensor that differs from its hash."""
        path = Path(ref.path)
        if path.exists():
            self.give_back(path.stat().st_size)
            path.unlink(missing_ok=True)

    def reserve(self, nbytes: int) -> bool:
        """Reserve bytes for a file that comes; the first time that they are too many, ``full`` says why."""
        with self._lock:
            if not self.full and self.limit and self.used + nbytes > self.limit:
                held = f"{binary_size(self.used)} of its {binary_size(self.limit)}"
                self.full = (
                    f"store {self.layout.root} is full ({held}): what does not fit is not kept, and is fetched again "
                    "when it is needed; give it more (--set store_size=...), or empty it with 'blockwright zoo gc'"
                )
                log.warning("%s", self.full)
            self.used += 0 if self.full else nbytes
            return not self.full

    def give_back(self, nbytes: int) -> None:
        """Give back what was reserved for a file that is not kept."""
        with self._lock:
            self.used -= nbytes

    def give_up(self, error: OSError) -> None:
        """Keep nothing more: the file system refuses."""
        remedy = "free some room there" if error.errno in _NO_ROOM else "check the folder"
        if not self.full:
            self.full = (
                f"store {self.layout.root} keeps nothing more ({error.strerror}): what comes is fetched again when needed; "
                f"{remedy}, then restart the worker"
            )
            log.warning("%s", self.full)


class ArrivingTensor:
    """A raw tensor that arrives, from its first byte to its last: in the store if it has room, else in memory.

    filled: bytes of the tensor that are here.
    """

    def __init__(self, tensor: StoredTensor, store: Store | None) -> None:
        self.tensor = tensor
        self.filled = 0
        self._header = tensor_header(tensor.dtype, tensor.shape)
        self._store = store
        self._fd, self._path = -1, Path()
        self._lock = threading.Lock()
        self._begin()

    @property
    def _size(self) -> int:
        """The bytes of its file."""
        return len(self._header) + self.tensor.nbytes

    @property
    def in_memory(self) -> int:
        """The bytes that lie in memory beside the store."""
        return self.filled if self._store is None and self._fd >= 0 else 0

    @property
    def whole(self) -> bool:
        return self.filled == self.tensor.nbytes

    @property
    def offset(self) -> int:
        """The offset of the tensor's bytes in a file of a zoo."""
        return len(self._header)

    def append(self, piece: memoryview | bytes) -> None:
        """Add the bytes that follow. Raises OriginError for more than the tensor has."""
        with self._lock:
            if self._fd < 0:
                raise OriginError(f"tensor {self.tensor.hash[:12]} is not needed any more")
            if len(piece) > self.tensor.nbytes - self.filled:
                raise OriginError(f"tensor {self.tensor.hash[:12]} has {self.tensor.nbytes} bytes, and more came")
            self._digest.update(piece)
            try:
                _write(self._fd, piece, self.offset + self.filled)
            except OSError as error:
                if self._store is None:
                    raise
                self._move_to_memory(error)
                _write(self._fd, piece, self.offset + self.filled)
            self.filled += len(piece)

    def finish(self) -> TensorRef | None:
        """Return the place of the whole tensor; None if it is damaged, and then it is empty again."""
        if not self.whole or self._digest.hexdigest() != self.tensor.hash:
            self.close()
            self._begin()
            return None
        if self._store is not None:
            try:
                self._keep(self._store)
            except OSError as error:
                self._move_to_memory(error)
        path = f"{IN_MEMORY}{self._fd}" if self._store is None else str(self._path)
        shape = self.tensor.dtype, self.tensor.shape
        return TensorRef(path, TENSOR_NAME, *shape, len(self._header), self.tensor.nbytes)

    def close(self) -> None:
        """Let go of it, also while a thread still adds to it. What is in the store stays."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._store is not None and self._path.name.startswith(ARRIVING):
            self._path.unlink(missing_ok=True)
            self._path = Path()
            self._store.give_back(self._size)

    def _begin(self) -> None:
        self.filled = 0
        self._digest = begin_hash(self.tensor.dtype, self.tensor.shape)
        if self._store is not None and not self._store.reserve(self._size):
            self._store = None
        if self._store is None:
            self._fd = _memory(self.tensor)
        else:
            self._path = self._store.layout.tmp / f"{ARRIVING}-{os.getpid()}-{id(self)}-{self.tensor.hash[:16]}"
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                _write(self._fd, self._header, 0)
                return
            except OSError as error:
                self._move_to_memory(error)
                return
        _write(self._fd, self._header, 0)

    def _keep(self, store: Store) -> None:
        """Give the file its last name. Another worker may have been quicker, with the same bytes."""
        path = store.layout.tensor(self.tensor.hash)
        path.parent.mkdir(exist_ok=True)
        there = path.exists()
        os.rename(self._path, path)
        self._path = path
        if there:
            store.give_back(self._size)

    def _move_to_memory(self, error: OSError) -> None:
        """Go on in memory, since the store refuses."""
        assert self._store is not None
        self._store.give_up(error)
        old, fd = self._fd, _memory(self.tensor)
        _write(fd, self._header, 0)
        at, end = len(self._header), len(self._header) + self.filled
        while at < end:
            piece = os.pread(old, min(1 << 20, end - at), at)
            if not piece:
                raise error
            _write(fd, piece, at)
            at += len(piece)
        self._close()
        self._store, self._fd = None, fd


def is_in_memory(ref: TensorRef) -> bool:
    """Return whether a tensor that came lies in memory, and not in the store."""
    return ref.path.startswith(IN_MEMORY)


def _memory(tensor: StoredTensor) -> int:
    return os.memfd_create(f"blockwright-{tensor.hash[:16]}", os.MFD_CLOEXEC)


def _write(fd: int, piece: memoryview | bytes, at: int) -> None:
    rest = memoryview(piece)
    while rest:
        done = os.pwrite(fd, rest, at)
        rest, at = rest[done:], at + done
