"""Device slots: chunks that travel through memory of a card which two processes of one host share.

The sender owns a ring of slots of equal size in a plain allocation. It queues the copy of a chunk's bytes into a slot and
records the slot's event behind it; only the slot's number travels. The receiver's queue waits for the event and copies the
bytes out. The chunk is acknowledged when that copy has ended, and so the acknowledgement returns the slot: a lost message
loses no slot, since it is sent again from where it lies. A chunk that finds no slot travels in frames.

Nothing waits for a card here. What a copy reads whose sender has died is not known, and never delivered.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ..policies.cluster.chunk_order import MOST, Chunk, Traffic
from . import link_wire
from .address import PeerId
from .device_memory import DeviceBytes, DeviceMemory, DeviceMemoryError, Frame, host_bytes
from .wire import WireError

SLOTS = 32
MOST_OFFERED = 1024  # slots of another process's ring
LONGEST_OFFER = 1 << 20  # bytes
Key = tuple[Traffic, int]  # class and number of a chunk


@dataclass(frozen=True, slots=True)
class RingOffer:
    """The offer of a ring, with which a receiver opens it. ``handle`` and ``events`` (of each slot) are hexadecimal."""

    form: str
    host: str
    card: str
    slot_bytes: int
    handle: str
    events: list[str] = field(repr=False)

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def parse_offer(text: bytes) -> RingOffer:
    """Parse the offer of a ring. Raises DeviceMemoryError with the reason."""
    try:
        if len(text) > LONGEST_OFFER:
            raise ValueError(f"{len(text)} bytes")
        found: dict[str, Any] = json.loads(text)
        offer = RingOffer(**found)
        words = (offer.form, offer.host, offer.card, offer.handle, *offer.events)
        if not isinstance(offer.events, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("it is not made of texts")
        if not isinstance(offer.slot_bytes, int) or isinstance(offer.slot_bytes, bool):
            raise ValueError("the size of a slot is no number")
        for word in (offer.handle, *offer.events):
            bytes.fromhex(word)
    except (ValueError, TypeError, RecursionError) as error:
        raise DeviceMemoryError(f"the offer of device slots cannot be read: {error}") from error
    if not 0 < len(offer.events) <= MOST_OFFERED or not 0 < offer.slot_bytes <= link_wire.MAX_MESSAGE:
        slots = len(offer.events)
        raise DeviceMemoryError(f"{slots} device slots of {offer.slot_bytes} bytes were offered; 1 to {MOST_OFFERED} may be")
    return offer


class DeviceRing:
    """The slots that a process sends from, to all its peers (see the module). Raises DeviceMemoryError."""

    def __init__(self, memory: DeviceMemory, slots: int = SLOTS, slot_bytes: int = MOST) -> None:
        self.slot_bytes = slot_bytes
        self._memory, self._queue = memory, memory.queue()
        self._address = memory.allocate(slots * slot_bytes)
        self._events = [memory.event() for _ in range(slots)]
        self._free = deque(range(slots))  # appended to by any thread
        self._lent: dict[PeerId, dict[Key, int]] = {}
        self._sources: dict[int, list[Any]] = {}  # by slot: what its last copy reads
        handles = [memory.event_handle(event).hex() for event in self._events]
        offer = RingOffer(memory.form, memory.host, memory.card, slot_bytes, memory.handle(self._address).hex(), handles)
        self.offer = offer.pack()

    @property
    def free(self) -> int:
        """The number of slots that hold no chunk."""
        return len(self._free)

    def lay(self, peer: PeerId, chunk: Chunk, frames: list[Frame]) -> list[Frame]:
        """Return the frames of a chunk with its bytes in a slot; unchanged if it has none or there is no slot.

        The bytes must not change until the chunk is acknowledged. A chunk that is sent again lies where it was.
        """
        head, rest = host_bytes(frames[0]), frames[1:]
        key, size = (chunk.kind, chunk.number), sum(map(len, rest))
        slot = self._lent.get(peer, {}).get(key)
        if slot is None:
            if not 0 < size <= self.slot_bytes or not self._free:
                return frames
            slot = self._free.popleft()
            self._lent.setdefault(peer, {})[key] = slot
            self._write(slot, rest)
        return list(link_wire.pack_laid(bytes(head), slot, rest))

    def release(self, peer: PeerId, chunk: Chunk) -> None:
        """Take back the slot of a chunk that was acknowledged, if it had one."""
        slot = self._lent.get(peer, {}).pop((chunk.kind, chunk.number), None)
        if slot is not None:
            self._give_back(slot)  # its copy has ended: the receiver's waited for it

    def forget(self, peer: PeerId) -> None:
        """Take back everything that was lent to ``peer``, which is gone, as soon as no copy into it is queued."""
        for slot in self._lent.pop(peer, {}).values():
            self._queue.call(partial(self._give_back, slot))

    def close(self) -> None:
        """End the copies. The memory goes with the process, since peers may still read it."""
        self._lent.clear()
        self._queue.close(self._sources.clear)

    def _write(self, slot: int, frames: Sequence[Frame]) -> None:
        target, sources = self._address + slot * self.slot_bytes, []
        for frame in frames:
            if len(frame):
                address, held = address_of(frame)
                sources.append(held)
                self._queue.copy(target, address, len(frame))
                target += len(frame)
        self._sources[slot] = sources
        self._queue.record(self._events[slot])

    def _give_back(self, slot: int) -> None:
        self._sources.pop(slot, None)
        self._free.append(slot)


class SlotFetch:
    """The copy of a chunk out of a slot. ``ended``: its bytes are here."""

    __slots__ = ("_lengths", "_memory", "ended")

    def __init__(self, memory: memoryview, lengths: Sequence[int]) -> None:
        self._memory, self._lengths = memory, lengths
        self.ended = False

    def frames(self) -> list[memoryview]:
        """Return the frames that the chunk would have come in."""
        found, at = [], 0
        for length in self._lengths:
            found.append(self._memory[at : at + length])
            at += length
        return found


class RingReader:
    """A peer's ring, opened (see the module). ``arrived`` is called, from any thread, when a copy has ended.

    Raises DeviceMemoryError, with the reason, for a ring that cannot be opened here.
    """

    def __init__(self, memory: DeviceMemory, text: bytes, arrived: Callable[[], None]) -> None:
        offer = parse_offer(text)
        if offer.form != memory.form:
            raise DeviceMemoryError(f"device slots of the form {offer.form[:40]!r} were offered; this end has {memory.form}")
        if not memory.host or offer.host != memory.host:
            raise DeviceMemoryError("device slots of another host were offered; only processes of one host share them")
        if offer.card != memory.card:
            raise DeviceMemoryError(f"device slots of card {offer.card[:40]!r} were offered; this end uses {memory.card}")
        self.text = text
        self._memory, self._arrived = memory, arrived
        self._slot_bytes = offer.slot_bytes
        self.settled = False  # closed, and no copy is under way
        self._events = [memory.open_event(bytes.fromhex(event)) for event in offer.events]
        self._address = memory.open(bytes.fromhex(offer.handle), len(offer.events) * offer.slot_bytes)
        self._queue = memory.queue()

    def fetch(self, slot: int, lengths: Sequence[int]) -> SlotFetch:
        """Queue the copy of what lies in a slot, as frames of these lengths. Raises WireError for no slot of the ring."""
        size = sum(lengths)
        if not 0 <= slot < len(self._events) or not 0 < size <= self._slot_bytes:
            raise WireError(f"{size} bytes in device slot {slot} of {len(self._events)} of {self._slot_bytes} bytes")
        memory = self._memory.host_memory(size)
        fetch, (address, held) = SlotFetch(memory.toreadonly(), lengths), address_of(memory)
        self._queue.wait(self._events[slot])
        self._queue.copy(address, self._address + slot * self._slot_bytes, size)
        self._queue.call(partial(self._end, fetch, held))
        return fetch

    def close(self) -> None:
        """End the reading, with nothing delivered any more. ``arrived`` is called when the ring may be given back."""
        self._queue.close(self._settle)

    def give_back(self) -> None:
        """Close the memory and the events of a ring that is settled."""
        self._memory.close(self._address)
        for event in self._events:
            self._memory.close_event(event)

    def _settle(self) -> None:
        self.settled = True
        self._arrived()

    def _end(self, fetch: SlotFetch, held: object) -> None:
        """Note that a copy has ended. ``held`` is a parameter only to keep the memory until then."""
        fetch.ended = True
        self._arrived()


def address_of(buffer: Frame) -> tuple[int, object]:
    """Return the address of a buffer, and what keeps it in memory."""
    if isinstance(buffer, DeviceBytes):
        return buffer.address, buffer
    import numpy as np  # ctypes gives no address of memory that is read-only

    array = np.frombuffer(buffer, dtype=np.uint8)
    return int(array.ctypes.data), array
