"""Device memory that other processes can open: what links need of a card, as a protocol.

Copies are queued, and nothing here waits for them. An event is a place in a queue that another process can let its own
queue wait for. ``memory_file.py`` is the twin on the host, ``cupy_memory.py`` the memory of a card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from .errors import TransportError
from .wire import Buffer


class DeviceMemoryError(TransportError):
    """Memory of a device that cannot be had, or not be opened; the text is the reason."""


class DeviceBytes:
    """Bytes in memory of a device that are sent, or a part of them: what can copy from there does, all else takes ``host``.

    ``read`` copies all of them to the host. ``held`` keeps the memory as long as this object is held.
    """

    __slots__ = ("_held", "_host", "_read", "address", "nbytes")

    def __init__(self, address: int, nbytes: int, read: Callable[[], memoryview], held: object) -> None:
        self.address, self.nbytes = address, nbytes
        self._read, self._held = read, held
        self._host: memoryview | None = None

    def __len__(self) -> int:
        return self.nbytes

    def part(self, start: int, stop: int) -> DeviceBytes:
        """Return the bytes from ``start`` to ``stop``."""
        return DeviceBytes(self.address + start, stop - start, lambda: self.host()[start:stop], self)

    def host(self) -> memoryview:
        """Return the bytes in memory of the host, to which they are copied once."""
        if self._host is None:
            self._host = self._read()
        return self._host


Frame = Buffer | DeviceBytes


def host_bytes(frame: Frame) -> Buffer:
    """Return a frame in memory of the host."""
    return frame.host() if isinstance(frame, DeviceBytes) else frame


class CopyQueue(Protocol):
    """A stream: what is queued happens in its order. Addresses are of the host or of the device."""

    def copy(self, target: int, source: int, nbytes: int) -> None: ...

    def record(self, event: Any) -> None:
        """Let the event stand behind everything that was queued so far."""

    def wait(self, event: Any) -> None:
        """Let what is queued from now on happen behind what the event was last recorded behind, in any process."""

    def call(self, ended: Callable[[], None]) -> None:
        """Call back, from any thread, when everything that was queued so far has ended."""

    def close(self, settled: Callable[[], None]) -> None:
        """End the queue, and call back, from any thread, when nothing that it was given uses memory any more.

        That may be never where it waits for an event of a process that has died.
        """


class DeviceMemory(Protocol):
    """Memory of one card, or its twin. Raises DeviceMemoryError. ``form``, ``host`` and ``card`` say who can open it."""

    form: str
    host: str
    card: str

    def allocate(self, nbytes: int) -> int:
        """Return the address of memory that other processes can open. It is never part of a pool that moves."""

    def handle(self, address: int) -> bytes:
        """Return what another process opens allocated memory with."""

    def open(self, handle: bytes, nbytes: int) -> int:
        """Return the address of another process's memory here."""

    def close(self, address: int) -> None:
        """Give back allocated or opened memory that nothing queued uses."""

    def event(self) -> Any:
        """Return a new event, which other processes can open."""

    def event_handle(self, event: Any) -> bytes: ...

    def open_event(self, handle: bytes) -> Any: ...

    def close_event(self, event: Any) -> None:
        """Give back an opened event."""

    def queue(self) -> CopyQueue: ...

    def pin(self, address: int, nbytes: int, *, written: bool) -> None:
        """Let the device copy from host memory by itself, and to it where it is ``written``."""

    def unpin(self, address: int) -> None:
        """End ``pin``. No copy under way uses the memory."""

    def host_memory(self, nbytes: int) -> memoryview:
        """Return memory of the host that the device copies to fastest."""


@cache
def this_host() -> str:
    """Return what tells this host, since its last start, from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
