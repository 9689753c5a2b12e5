"""One transfer over a link: its progress as the caller sees it, and the cut of its bytes into chunks.

Owns the count of acknowledged bytes and the slots of shared memory that the message lies in. Decides nothing:
``policies/cluster/chunk_order.py`` picks the order of chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence

from ..policies.cluster.chunk_order import Chunk, Traffic
from . import link_wire
from .address import PeerId
from .device_memory import DeviceBytes, Frame
from .errors import PeerGone
from .shared_memory import SharedPool, Slot
from .wire import Buffer

SHARE_LEAST = 256 << 10  # bytes of a buffer from which a slot is cheaper than a frame
FRAME = 1 << 20  # bytes; longer runs travel in frames of this size, which libzmq's allocator finds again
WHOLE = 4 << 20  # bytes of a buffer that is not cut into chunks in one frame, which need not be copied at its end


class Transfer:
    """The result of ``Link.send``.

    Awaited, it ends when the receiver has acknowledged everything, or raises PeerGone.
    """

    __slots__ = ("_ended", "acknowledged", "chunks", "done", "fault", "kind", "peer", "size")

    def __init__(self, peer: PeerId, kind: Traffic, size: int) -> None:
        self.peer = peer
        self.kind = kind
        self.size = size  # bytes of its buffers
        self.acknowledged = 0  # bytes that the receiver has for certain
        self.chunks = 0  # chunks that the receiver has for certain
        self.done = False
        self.fault: PeerGone | None = None
        self._ended: asyncio.Event | None = None

    def __await__(self) -> Generator[object, None, None]:
        if not self.done and self.fault is None:
            if self._ended is None:
                self._ended = asyncio.Event()
            yield from self._ended.wait().__await__()
        if self.fault is not None:
            raise self.fault

    def acknowledge(self, chunk: Chunk) -> None:
        self.acknowledged += chunk.size
        self.chunks += 1
        if chunk.last:
            self.done = True
            self._end()

    def fail(self, why: str) -> None:
        text = f"{why}; {self.acknowledged} of {self.size} bytes in {self.chunks} chunks were acknowledged"
        self.fault = PeerGone(text, acknowledged=self.acknowledged, chunks=self.chunks)
        self._end()

    def _end(self) -> None:
        if self._ended is not None:
            self._ended.set()


class OutgoingTransfer:
    """A message that is being sent. ``views``: its buffers; ``slots``: the slots that the caller has written."""

    __slots__ = ("_begun", "_slots", "_views", "_written", "header", "sizes", "transfer")

    def __init__(
        self,
        transfer: Transfer,
        header: bytes,
        views: Sequence[memoryview | DeviceBytes],
        sizes: tuple[int, ...],
        slots: list[Slot | None],
    ) -> None:
        self.transfer = transfer
        self.header = header
        self.sizes = sizes
        self._views, self._slots = list(views), slots
        self._written = [slot is not None for slot in slots]
        self._begun = False

    def frames(self, chunk: Chunk, shared: SharedPool | None, by_reference: bool) -> list[Frame]:
        """Return the frames of a chunk.

        With ``shared``, memory that the peer has attached, large buffers are laid into it.
        """
        if not self._begun:
            self._begun = True
            self._place(shared)
        if chunk.offset:
            frames: list[Frame] = [link_wire.pack_chunk(chunk.kind, chunk.number, chunk.offset, chunk.size)]
        else:
            slots = [0 if slot is None else slot.offset for slot in self._slots]
            frames = [link_wire.pack_first(chunk.kind, chunk.number, chunk.size, self.sizes, slots, self.header)]
        longest = WHOLE if chunk.last and not chunk.offset else FRAME
        for index, start, stop in link_wire.ranges(self.sizes, chunk.offset, chunk.size):
            slot, view = self._slots[index], self._views[index]
            if isinstance(view, DeviceBytes):
                if slot is None:
                    frames += [view.part(start, stop)] if stop > start else []
                elif not self._written[index]:
                    slot.view[start:stop] = view.host()[start:stop]
            elif slot is None:
                frames += [view[start:stop]] if by_reference else cut(view[start:stop], longest)
            elif not self._written[index]:
                slot.view[start:stop] = view[start:stop]
        return frames

    def _place(self, shared: SharedPool | None) -> None:
        """Find a slot for each large buffer, as far as there is space; the peer holds them from then on."""
        for index, (slot, view) in enumerate(zip(self._slots, self._views, strict=True)):
            if shared is None:
                self._slots[index] = None
            elif slot is None and len(view) >= SHARE_LEAST:
                self._slots[index] = slot = shared.allocate(len(view))
            if shared is not None and slot is not None:
                shared.lend(self.transfer.peer, slot)


def as_bytes(buffer: Buffer) -> memoryview:
    """Return the bytes of an object with contiguous memory, not copied. Raises ValueError for any other."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError(f"a buffer of shape {view.shape} is not contiguous; send a contiguous copy")
    if view.ndim == 1 and view.format == "B":
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def cut(view: memoryview, longest: int = WHOLE) -> list[Buffer]:
    """Cut a run of bytes into frames of ``FRAME`` bytes; a run of at most ``longest`` bytes stays one frame."""
    if len(view) <= longest:
        return [view]
    return [view[at : at + FRAME] for at in range(0, len(view), FRAME)]
