"""Shared memory between processes of one host: the sender writes a slot, only its offset travels.

Owns a process's pool of slots and the record of which peer holds which slot. The pool is an anonymous memory file, in no
folder, so nothing remains when a process is killed. Owns also the other end: memory of a peer, mapped read-only, whose
views report when the last reader lets go. A peer opens the file through /proc, which the kernel grants to the same user
alone. The file's name, owner, size, seals and token are checked, and every offset that came over the wire.
``multiprocessing.shared_memory`` is not used: its files outlive a killed process, and attaching registers them for
deletion.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache

from ..policies.memory.range_allocator import RangeAllocator
from .address import PeerId
from .link_wire import NOTHING, SharedMemoryOffer
from .wire import Buffer, WireError

POOL_BYTES = 512 << 20  # at most; memory is taken as slots are first written
PINNED_BYTES = 128 << 20  # of a pool that is pinned for a card, which takes all of its memory at once
GRANULE = 64 << 10
_NAME = "blockwright-slots"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
TOKEN = 16  # bytes at the start of a file, by which it is recognized
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_PROT_READ, _MAP_SHARED = 1, 1


class Slot:
    """A range of the pool to write to and send. It returns when its last holder, here or at a peer, lets go."""

    __slots__ = ("_pool", "_start", "offset", "size", "view")

    def __init__(self, pool: SharedPool, start: int, size: int) -> None:
        self._pool, self._start = pool, start
        self.offset = start * GRANULE
        self.size = size
        self.view = memoryview(pool.memory)[self.offset : self.offset + size]

    def __del__(self) -> None:
        self._pool.give_back(self._start, -(-self.size // GRANULE))


class SharedPool:
    """The slots of this process. Any thread may take one.

    Raises OSError if the system has no memory files.
    """

    def __init__(self, size: int = POOL_BYTES) -> None:
        size = -(-size // GRANULE) * GRANULE
        token = secrets.token_bytes(TOKEN)
        self._descriptor, self.memory = make_file(_NAME, size, token)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.offer = SharedMemoryOffer(os.getpid(), self._descriptor, size, token)
        self.size, self.pinned = size, False
        self.address = ctypes.addressof(ctypes.c_uint8.from_buffer(self.memory))
        self._lock = threading.RLock()  # re-entered when the collector runs __del__ of a slot within take
        self._extents = RangeAllocator(size // GRANULE)
        self._extents.allocate(1)  # for the token
        self._lent: dict[PeerId, dict[int, list[Slot]]] = {}

    @property
    def free(self) -> int:
        """The bytes that are not in slots."""
        return self._extents.free * GRANULE

    def allocate(self, size: int) -> Slot | None:
        """Return a slot of ``size`` bytes, or None if there is no space for it."""
        if size < 1:
            return None
        with self._lock:
            start = self._extents.allocate(-(-size // GRANULE))
        return None if start is None else Slot(self, start, size)

    def put(self, data: Buffer) -> Slot | None:
        """Copy ``data`` once, into a slot of its own."""
        slot = self.allocate(len(data))
        if slot is not None:
            slot.view[:] = data
        return slot

    def lend(self, peer: PeerId, slot: Slot) -> None:
        """Keep the slot until ``peer`` releases it, once for each time that it is lent."""
        self._lent.setdefault(peer, {}).setdefault(slot.offset, []).append(slot)

    def release(self, peer: PeerId, offset: int) -> None:
        """Record that ``peer`` no longer reads the slot. Raises WireError for a slot that it was not lent."""
        slots = self._lent.get(peer, {}).get(offset)
        if not slots:
            raise WireError(f"{peer} releases slot {offset}, which it does not hold")
        slots.pop()
        if not slots:
            del self._lent[peer][offset]

    def forget(self, peer: PeerId) -> None:
        """Take back everything that was lent to ``peer``, which is gone."""
        self._lent.pop(peer, None)

    def lent(self, peer: PeerId) -> int:
        """Return the number of slots that ``peer`` holds."""
        return sum(len(slots) for slots in self._lent.get(peer, {}).values())

    def give_back(self, start: int, granules: int) -> None:
        """Free a slot's range; ``Slot`` calls this at its end."""
        with self._lock:
            self._extents.give_back(start, granules)

    def close(self) -> None:
        """Refuse new attachments. The memory goes with its last reader. Idempotent."""
        if self.offer is not NOTHING:
            self.offer = NOTHING
            self._lent.clear()
            os.close(self._descriptor)


class Attached:
    """A peer's pool, mapped read-only. It is unmapped when the last view is gone."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def __del__(self) -> None:
        _libc.munmap(self.address, self.size)

    def view(self, offset: int, size: int, released: Callable[[], None]) -> memoryview:
        """Return the bytes of a slot, read-only.

        ``released`` is called, from any thread, when nothing refers to them any more. Raises WireError for a range that
        is not in the pool, or is not the range of a slot.
        """
        if offset % GRANULE or offset < GRANULE or size < 1 or offset + size > self.size:
            raise WireError(f"a slot of {size} bytes at {offset} in a pool of {self.size}")
        # The buffer's owner must be an object of its own, which a slice of the view also refers to.
        owner = _array(-(-size // GRANULE) * GRANULE).from_address(self.address + offset)
        weakref.finalize(owner, _let_go, self, released).atexit = False
        return memoryview(owner).cast("B")[:size].toreadonly()


@lru_cache(maxsize=1024)
def _array(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


def _let_go(attached: Attached, released: Callable[[], None]) -> None:
    released()  # ``attached`` is a parameter only to live as long as its views


def make_file(name: str, size: int, token: bytes) -> tuple[int, mmap.mmap]:
    """Make a memory file that begins with ``token``; return its descriptor and the file, mapped. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)  # so the file cannot shrink under a reader
        memory = mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    memory[:TOKEN] = token
    return descriptor, memory


def attach(offer: SharedMemoryOffer, name: str = _NAME) -> Attached | None:
    """Map the memory file of this name that a peer offers.

    Returns None if it cannot be mapped: another host, another user, or not the file that the offer claims.
    """
    link = f"/proc/{offer.process}/fd/{offer.descriptor}"
    try:
        if not offer.size or not os.readlink(link).startswith(f"/memfd:{name}"):
            return None
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size != offer.size:
            return None
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.pread(descriptor, TOKEN, 0) != offer.token:
            return None
        address = _libc.mmap(None, offer.size, _PROT_READ, _MAP_SHARED, descriptor, 0)
        if address is None or address == _FAILED:
            return None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return Attached(address, offer.size)
