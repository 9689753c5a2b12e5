"""How messages lie in ZeroMQ frames: batches of small ones, single ones with buffers, link traffic.

Every ZeroMQ message (after the routing id) starts with a frame whose first byte says what follows:

    BATCH    this frame holds several messages: (length u32, body)*; no further frames
    SINGLE   frame 1 is the body, further frames are its buffers
    SHARED   frame 1 is the body, frame 2 says which buffers lie in shared memory, further frames are the other buffers
    LINK     the further frames are a message of the link protocol (``link_wire.py``)

Owns that layout and the size limits; never looks into a body. What does not fit the layout raises ``WireError``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from blockwright.policies.chunk_order import Traffic as Traffic
from blockwright.transport.errors import MessageTooLarge, TransportError

Buffer = bytes | bytearray | memoryview  # contiguous

BATCH, SINGLE, SHARED, LINK = 1, 2, 6, 16  # 3 to 5 are of ``greeting.py``
MAX_BODY = 8 << 20  # bytes of one message without its buffers
MAX_FRAME = 256 << 20  # bytes of one buffer
MAX_FRAMES = 1024  # of one message
BATCH_LIMIT = 64 << 10  # bytes; a larger message is never copied into a batch
SINGLE_MARK, SHARED_MARK = bytes([SINGLE]), bytes([SHARED])
LINK_MARK = bytes([LINK])
_LENGTH = struct.Struct("<I")


class WireError(TransportError):
    """A received message that does not fit the layout."""


def pack_batch(bodies: Sequence[bytes]) -> bytes:
    """One frame from small bodies."""
    parts = [bytes([BATCH])]
    for body in bodies:
        parts.append(_LENGTH.pack(len(body)))
        parts.append(body)
    return b"".join(parts)


def unpack_batch(frame: bytes) -> Iterator[memoryview]:
    """Bodies of a BATCH frame, in order; views of ``frame``."""
    view = memoryview(frame)
    at, end = 1, len(frame)
    while at < end:
        if at + 4 > end:
            raise WireError("a batch ends within a length")
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4
        if at + length > end:
            raise WireError(f"a batch announces {length} bytes and holds {end - at}")
        yield view[at : at + length]
        at += length


def checked(body: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers as plain bytes, ready to be sent.

    Raises MessageTooLarge where the receiver would refuse, or libzmq would cut the connection (MAXMSGSIZE).
    """
    if len(body) > MAX_BODY:
        raise MessageTooLarge(f"a message body of {len(body)} bytes exceeds {MAX_BODY}; send large data as buffers")
    if len(buffers) > MAX_FRAMES - 4:
        raise MessageTooLarge(f"{len(buffers)} buffers exceed {MAX_FRAMES - 4} in one message; join or split them")
    flat: list[Buffer] = [b.cast("B") if isinstance(b, memoryview) and b.format != "B" else b for b in buffers]
    for buffer in flat:
        if len(buffer) > MAX_FRAME:
            raise MessageTooLarge(f"a buffer of {len(buffer)} bytes exceeds {MAX_FRAME}; cut it into pieces")
    return flat
