"""The twin of a card's memory between processes: memory files for memory and events, and queues on the event loop's clock.

For tests without a card, and for the mirror. It keeps what bugs come of: a copy happens some time after it was queued, so a
reader that does not wait for the event reads old bytes; and what a killed process had queued never happens, so its events
never come. A queue that waits for an event asks again after a while.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import struct
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

from .clock import Clock, Timer
from .device_memory import DeviceMemoryError, this_host
from .link_wire import SharedMemoryOffer
from .shared_memory import TOKEN, Attached, attach, make_file

NAME = "blockwright-device"
MOST_EVENTS = 4096  # of a memory
ASK_AGAIN = 0.0005  # seconds until a queue looks at an event again
_HANDLE = struct.Struct("<IIQ16sI")  # process, descriptor, bytes, token; of an event, its number
_EVENT_BYTES = 16  # how often it was recorded, and how many of these places were reached


@dataclass(frozen=True, slots=True)
class FileEvent:
    """An event: two counters in a memory file."""

    recorded: ctypes.c_uint64
    reached: ctypes.c_uint64
    number: int
    memory: object  # kept mapped as long as the event


class FileQueue:
    """A queue of copies. ``seconds`` says how long the next one takes. A step returns False if it has to wait."""

    def __init__(self, clock: Clock, seconds: Callable[[], float]) -> None:
        self._clock, self._seconds = clock, seconds
        self._steps: deque[Callable[[], bool]] = deque()
        self._timer: Timer | None = None
        self._closed = False

    def copy(self, target: int, source: int, nbytes: int) -> None:
        def step() -> bool:
            ctypes.memmove(target, source, nbytes)
            return True

        self.add(step)

    def record(self, event: FileEvent) -> None:
        place = event.recorded.value = event.recorded.value + 1

        def step() -> bool:
            event.reached.value = place
            return True

        self.add(step)

    def wait(self, event: FileEvent) -> None:
        place = event.recorded.value
        self.add(lambda: event.reached.value >= place)

    def call(self, ended: Callable[[], None]) -> None:
        def step() -> bool:
            ended()
            return True

        self.add(step)

    def close(self, settled: Callable[[], None]) -> None:
        self._closed = True
        self._steps.clear()
        if self._timer is not None:
            self._timer.cancel()
        settled()

    def add(self, step: Callable[[], bool]) -> None:
        self._steps.append(step)
        if self._timer is None and not self._closed:
            self._arm(self._seconds())

    def _arm(self, seconds: float) -> None:
        self._timer = self._clock.call_at(self._clock.now() + seconds, self._turn)

    def _turn(self) -> None:
        self._timer = None
        while self._steps and not self._closed:
            if not self._steps[0]():
                self._arm(ASK_AGAIN)
                return
            self._steps.popleft()


class MemoryFile:
    """``DeviceMemory`` on the host (see the module). ``seconds`` says how long each turn of a queue takes."""

    form = "memory-file"
    card = ""

    def __init__(self, clock: Clock, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.host = this_host()
        self._clock, self._seconds = clock, seconds
        self._files: dict[int, tuple[SharedMemoryOffer, object]] = {}  # by address
        self._opened: dict[int, Attached] = {}  # by address
        self._events_of: WeakValueDictionary[bytes, Attached] = WeakValueDictionary()  # by token, of other processes
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors)
        self.pinned: dict[int, int] = {}  # address -> bytes
        self._events_at = self.allocate(MOST_EVENTS * _EVENT_BYTES)
        self._events = 0

    def allocate(self, nbytes: int) -> int:
        token = secrets.token_bytes(TOKEN)
        try:
            descriptor, memory = make_file(NAME, nbytes + TOKEN, token)
        except OSError as error:
            raise DeviceMemoryError(f"there is no memory file of {nbytes} bytes: {error}") from error
        self._descriptors.append(descriptor)
        address = ctypes.addressof(ctypes.c_uint8.from_buffer(memory)) + TOKEN
        self._files[address] = SharedMemoryOffer(os.getpid(), descriptor, nbytes + TOKEN, token), memory
        return address

    def handle(self, address: int, number: int = 0) -> bytes:
        offer = self._files[address][0]
        return _HANDLE.pack(offer.process, offer.descriptor, offer.size, offer.token, number)

    def open(self, handle: bytes, nbytes: int) -> int:
        attached, _ = self._attach(handle, nbytes)
        address = attached.address + TOKEN
        self._opened[address] = attached
        return address

    def close(self, address: int) -> None:
        if self._opened.pop(address, None) is None:
            offer, _ = self._files.pop(address)
            self._descriptors.remove(offer.descriptor)
            os.close(offer.descriptor)

    def event(self) -> FileEvent:
        if self._events == MOST_EVENTS:
            raise DeviceMemoryError(f"there are no more than {MOST_EVENTS} events")
        self._events += 1
        return _event(self._events_at, self._events - 1, self._files[self._events_at])

    def event_handle(self, event: FileEvent) -> bytes:
        return self.handle(self._events_at, event.number)

    def open_event(self, handle: bytes) -> FileEvent:
        attached, number = self._attach(handle, MOST_EVENTS * _EVENT_BYTES, self._events_of)
        if number >= MOST_EVENTS:
            raise DeviceMemoryError(f"event {number} is none of {MOST_EVENTS}")
        return _event(attached.address + TOKEN, number, attached)

    def close_event(self, event: FileEvent) -> None:
        """Do nothing: memory is unmapped with the last event in it."""

    def queue(self) -> FileQueue:
        return FileQueue(self._clock, self._seconds)

    def pin(self, address: int, nbytes: int, *, written: bool) -> None:
        if address in self.pinned:
            raise DeviceMemoryError("this memory is pinned already")
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def host_memory(self, nbytes: int) -> memoryview:
        return memoryview(bytearray(nbytes))

    def _attach(
        self, handle: bytes, nbytes: int, known: MutableMapping[bytes, Attached] | None = None
    ) -> tuple[Attached, int]:
        if len(handle) != _HANDLE.size:
            raise DeviceMemoryError(f"a handle of {len(handle)} bytes is not of a memory file")
        process, descriptor, size, token, number = _HANDLE.unpack(handle)
        if known is not None and token in known:
            return known[token], number
        if size != nbytes + TOKEN:
            raise DeviceMemoryError(f"a memory file of {size - TOKEN} bytes was offered instead of {nbytes}")
        attached = attach(SharedMemoryOffer(process, descriptor, size, token), NAME)
        if attached is None:
            raise DeviceMemoryError(f"the memory file of process {process} cannot be opened here")
        if known is not None:
            known[token] = attached
        return attached, number


def _event(base: int, number: int, memory: object) -> FileEvent:
    at = base + number * _EVENT_BYTES
    return FileEvent(ctypes.c_uint64.from_address(at), ctypes.c_uint64.from_address(at + 8), number, memory)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
