"""The receiver's end of a link: assembles the chunks of one sender and delivers each message once, in class order.

Owns the counts of received and taken chunks, messages that are partly here, and the memory in which they are put
together. One ``Budget`` bounds that memory for all senders of a node; it also counts messages that were delivered and are
still read. A class without memory waits, unacknowledged, and so its sender stops; so does a class whose next chunk is still
being copied out of a device slot. Sends nothing itself.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..policies.cluster.chunk_order import URGENT_BYTES, URGENT_CHUNKS, Traffic
from . import link_wire
from .device_link import RingReader, SlotFetch
from .link_wire import ArrivedChunk, Counts, Description
from .nccl_link import NcclReceiver
from .shared_memory import Attached
from .wire import WireError

BUDGET = link_wire.MAX_MESSAGE  # bytes that messages of several chunks may take at a receiver
_ALIGN = 64  # bytes; alignment of a buffer
_HUGE = 2 << 20
Deliver = Callable[[Traffic, bytes, list[memoryview]], None]


class Budget:
    """Memory for messages that arrive in parts.

    ``freed`` is called, from any thread, when some memory comes back.
    """

    def __init__(self, size: int, freed: Callable[[], None]) -> None:
        self.size = size
        self._used = 0
        self._returned: deque[int] = deque()  # appended to by any thread that drops the last view
        self._freed = freed

    @property
    def used(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used

    def take(self, size: int) -> memoryview | None:
        """Return memory that comes back when nothing refers to it any more, or None while there is not enough.

        A message larger than the whole budget gets memory while nothing else holds any.
        """
        if self.used and self.used + size > self.size:
            return None
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared would have no huge pages
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._used += size
        weakref.finalize(memory, self._give_back, size).atexit = False
        return memoryview(memory)

    def _give_back(self, size: int) -> None:
        self._returned.append(size)
        self._freed()


@dataclass(slots=True, eq=False)
class _Assembly:
    """A message with only some of its chunks here."""

    description: Description
    parts: list[memoryview]  # to be written; empty for buffers in slots
    got: int = 0  # bytes


@dataclass(slots=True)
class Arrived:
    """The chunks of one class that arrived."""

    received: int = 0  # chunks
    taken: int = 0  # chunks that are in place and acknowledged
    bytes: int = 0  # in these chunks
    messages: int = 0  # complete, delivered


class Arrivals:
    """The receiver's end of a link (see the module).

    ``release(slot)`` is called when no reader here holds a slot of the sender any more.
    """

    def __init__(self, budget: Budget, deliver: Deliver, release: Callable[[int], None]) -> None:
        self._budget = budget
        self._deliver = deliver
        self._release = release
        self.attached: Attached | None = None  # the sender's shared memory
        self.pinned = False  # for this node's device
        self.reader: RingReader | None = None  # of the sender's device slots
        self.nccl: NcclReceiver | None = None
        self.nccl_failed = ""  # why NCCL is not opened again
        self._arrived = {kind: Arrived() for kind in Traffic}
        self._waiting: dict[Traffic, deque[tuple[ArrivedChunk, SlotFetch | None]]] = {kind: deque() for kind in Traffic}
        self._assemblies: dict[Traffic, _Assembly] = {}

    @property
    def received(self) -> Counts:
        one, two, three = (a.received for a in self._arrived.values())
        return one, two, three

    @property
    def taken(self) -> Counts:
        one, two, three = (a.taken for a in self._arrived.values())
        return one, two, three

    def inspect(self) -> dict[str, Any]:
        """Return the receiver's state as plain data."""
        return {
            kind.name: {
                "chunks": arrived.taken,
                "bytes": arrived.bytes,
                "messages": arrived.messages,
                "unfinished_bytes": self._assemblies[kind].got if kind in self._assemblies else 0,
            }
            for kind, arrived in self._arrived.items()
        }

    def view(self, slot: int, size: int) -> memoryview:
        """Return a slot of the sender's shared memory, released when nothing refers to the view. Raises WireError."""
        if self.attached is None:
            raise WireError("a slot of shared memory that is not attached")
        return self.attached.view(slot, size, lambda: self._release(slot))

    def on_piece(self, piece: ArrivedChunk) -> None:
        """Accept a chunk, unless it came before or follows a missing one. Raises WireError."""
        arrived, waiting = self._arrived[piece.kind], self._waiting[piece.kind]
        if piece.number != arrived.received:
            return
        if len(waiting) >= URGENT_CHUNKS or (waiting and sum(p.size for p, _ in waiting) > URGENT_BYTES):
            raise WireError(f"{len(waiting)} unacknowledged chunks of {piece.kind.name} wait, and more are sent")
        fetch = None
        if piece.laid is not None:
            fetch = self._fetch(piece, *piece.laid)
        arrived.received += 1
        waiting.append((piece, fetch))
        self._take(piece.kind)

    def end_nccl(self, why: str) -> NcclReceiver | None:
        """End NCCL for good, if it is open, and take back the chunks that it has not brought. Return its channel."""
        channel, self.nccl = self.nccl, None
        if channel is None:
            return None
        channel.abort(why)
        self.nccl_failed = channel.failed
        for kind, waiting in self._waiting.items():
            kept = list[tuple[ArrivedChunk, SlotFetch | None]]()
            for piece, fetch in waiting:
                if fetch is not None and not fetch.ended:
                    break
                kept.append((piece, fetch))
            self._arrived[kind].received -= len(waiting) - len(kept)
            self._waiting[kind] = deque(kept)
        return channel

    def resume(self) -> None:
        """Try waiting chunks again, after memory may have come back or a copy may have ended."""
        for kind in Traffic:
            self._take(kind)

    def _fetch(self, piece: ArrivedChunk, slot: int, lengths: tuple[int, ...]) -> SlotFetch:
        """Begin to fetch the bytes of a chunk that came without them. Raises WireError."""
        if slot != link_wire.BY_NCCL:
            if self.reader is None:
                raise WireError("a chunk in a device slot, and none was opened")
            return self.reader.fetch(slot, lengths)
        if self.nccl is None:
            raise WireError("a chunk by NCCL, which is not open")
        return self.nccl.fetch(piece.kind, piece.number, lengths)

    def _take(self, kind: Traffic) -> None:
        waiting, arrived = self._waiting[kind], self._arrived[kind]
        while waiting:
            piece, fetch = waiting[0]
            if fetch is not None:
                if not fetch.ended:
                    return
                piece = ArrivedChunk(*piece[:5], fetch.frames())
            waiting.popleft()
            if not self._put(kind, piece):
                waiting.appendleft((piece, None))
                return
            arrived.taken += 1
            arrived.bytes += piece.size

    def _put(self, kind: Traffic, piece: ArrivedChunk) -> bool:
        """Lay a chunk in place and deliver its message if complete; return False while there is no memory for it."""
        assembly = self._assemblies.get(kind)
        description = piece.description
        if description is not None:
            if assembly is not None:
                raise WireError(f"a message of {kind.name} begins before the last has ended")
            if (whole := self._whole(piece, description)) is not None:
                self._complete(kind, description.header, whole)
                return True
            assembly = self._begin(description)
            if assembly is None:
                return False
            self._assemblies[kind] = assembly
        if assembly is None or piece.offset != assembly.got or assembly.got + piece.size > assembly.description.total:
            raise WireError(f"a chunk of {piece.size} bytes at {piece.offset} belongs to no message of {kind.name}")
        _lay(assembly, piece)
        assembly.got += piece.size
        if assembly.got == assembly.description.total:
            del self._assemblies[kind]
            self._complete(kind, assembly.description.header, self._views(assembly.description, assembly.parts))
        return True

    def _whole(self, piece: ArrivedChunk, description: Description) -> list[memoryview] | None:
        """Return the buffers of a message that came at once in frames, ready for delivery; None for any other."""
        if piece.size != description.total:
            return None
        inline = [size for size, slot in zip(description.sizes, description.slots, strict=True) if size and not slot]
        if [len(frame) for frame in piece.frames] != inline:
            return None
        frames = iter(piece.frames)
        parts = [
            next(frames) if size and not slot else memoryview(b"")
            for size, slot in zip(description.sizes, description.slots, strict=True)
        ]
        return self._views(description, parts)

    def _begin(self, description: Description) -> _Assembly | None:
        lengths = [0 if slot else size for size, slot in zip(description.sizes, description.slots, strict=True)]
        memory = self._budget.take(sum(-(-length // _ALIGN) * _ALIGN for length in lengths))
        if memory is None:
            return None
        parts, at = [], 0
        for length in lengths:
            parts.append(memory[at : at + length])
            at += -(-length // _ALIGN) * _ALIGN
        return _Assembly(description, parts)

    def _views(self, description: Description, parts: list[memoryview]) -> list[memoryview]:
        """Return the buffers to deliver: ``parts``, and views of slots. Raises WireError."""
        views = []
        for size, slot, part in zip(description.sizes, description.slots, parts, strict=True):
            views.append(self.view(slot, size) if slot else part.toreadonly())
        return views

    def _complete(self, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        self._arrived[kind].messages += 1
        self._deliver(kind, header, buffers)


def _lay(assembly: _Assembly, piece: ArrivedChunk) -> None:
    """Copy a chunk's frames into place. Raises WireError unless they are exactly its bytes."""
    description = assembly.description
    frames = deque(piece.frames)
    for index, start, stop in link_wire.ranges(description.sizes, piece.offset, piece.size):
        if description.slots[index]:
            continue
        while start < stop:
            if not frames or not 0 < len(frames[0]) <= stop - start:
                raise WireError(f"the frames of a chunk of {piece.size} bytes do not fit")
            frame = frames.popleft()
            assembly.parts[index][start : start + len(frame)] = frame
            start += len(frame)
    if frames:
        raise WireError(f"{len(frames)} frames of a chunk belong nowhere")
