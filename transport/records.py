"""How messages lie on a byte stream (``direct.py``): what ZeroMQ's frames are elsewhere.

    RECORD   length u32, body                                      a message without buffers
    MESSAGE  MANY + count u32, length u32 * count, the frames      the frames of ``wire.SINGLE`` and ``wire.SHARED``

Owns that layout and its limits; reads and writes nothing. The first record on a stream is a greeting.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from blockwright.transport import greeting, wire
from blockwright.transport.wire import Buffer, WireError

MANY = 1 << 31
_LENGTH = struct.Struct("<I")
pack_length = _LENGTH.pack


def pack_lengths(frames: Sequence[Buffer]) -> bytes:
    """What goes before the frames of a message."""
    return struct.pack(f"<{len(frames) + 1}I", MANY + len(frames), *map(len, frames))


class RecordReader:
    """Cuts a stream into messages, whatever pieces it arrives in.

    ``missing``: bytes that the begun message still needs, as far as is known: a hint of how much to read.
    """

    def __init__(self) -> None:
        self.missing = 0
        self._longest = greeting.LONGEST  # bytes of a record: nobody is let in yet
        self._rest = b""  # less than is needed to know how long what comes is
        self._frames: list[memoryview] = []  # complete, of the message that is arriving
        self._lengths: list[int] = []  # of the frames still to come, the next one last
        self._frame = bytearray()  # the one that is arriving
        self._filled = 0  # bytes of it
        self._alone = True  # it is a record

    def let_in(self) -> None:
        """The greeting was good: from here on records and messages may be as long as ``wire`` allows."""
        self._longest = wire.MAX_BODY

    def feed(self, chunk: bytes) -> Iterator[memoryview | list[memoryview]]:
        """The messages that are complete with ``chunk``: a body, or a list of frames; read-only.

        Raises WireError, after which the stream has no meaning any more.
        """
        if self._rest:
            chunk, self._rest = self._rest + chunk, b""
        view, at, end = memoryview(chunk), 0, len(chunk)
        while True:
            if not self._lengths:
                if end - at < 4:
                    break
                (head,) = _LENGTH.unpack_from(chunk, at)
                if at + 4 + head <= end and head <= self._longest:
                    yield view[at + 4 : (at := at + 4 + head)]
                    continue
                if (begin := self._begin(head, view, at + 4)) is None:
                    break
                at = begin
            at = self._fill(view, at)
            if self._lengths:
                return
            frames, self._frames = self._frames, []
            yield frames[0] if self._alone else frames
        self._rest = chunk[at:]

    def _begin(self, head: int, view: memoryview, at: int) -> int | None:
        """Where the frames of a message begin; None while their lengths are not all there."""
        if head < MANY:
            lengths: tuple[int, ...] = (head,)
            longest = self._longest
        else:
            if not 2 <= (count := head - MANY) <= wire.MAX_FRAMES or self._longest != wire.MAX_BODY:
                raise WireError(f"a message of {count} frames; 2 to {wire.MAX_FRAMES} may come after the greeting")
            if len(view) - at < 4 * count:
                return None
            lengths = struct.unpack_from(f"<{count}I", view, at)
            at, longest = at + 4 * count, wire.MAX_FRAME
        if max(lengths) > longest:
            raise WireError(f"a frame of {max(lengths)} bytes exceeds {longest}")
        self._alone = head < MANY
        self._lengths = list(reversed(lengths))
        self._frame, self._filled = bytearray(lengths[0]), 0
        return at

    def _fill(self, view: memoryview, at: int) -> int:
        """Move what is there into the frames of the message; returns how far that went."""
        while self._lengths:
            size = min(len(self._frame) - self._filled, len(view) - at)
            self._frame[self._filled : self._filled + size] = view[at : at + size]
            self._filled += size
            at += size
            self.missing = len(self._frame) - self._filled
            if self.missing:
                break
            self._frames.append(memoryview(self._frame).toreadonly())
            self._lengths.pop()
            self._frame, self._filled = bytearray(self._lengths[-1] if self._lengths else 0), 0
        return at
