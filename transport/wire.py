"""The framing of messages in ZeroMQ: batches of small ones, single ones with buffers, link traffic.

Every ZeroMQ message (after the routing id) starts with a frame whose first byte says what follows:

    ALONE    the rest of this frame is the body of one message; no further frames
    BATCH    this frame holds messages: 3 bytes 0, parts u32, their lengths u32*, the parts; no further frames. The highest
             bit of a length says that the next part is of the same message: the first is its body, the others are buffers
    SINGLE   frame 1 is the body, further frames are its buffers
    SHARED   frame 1 is the body, frame 2 says which buffers lie in shared memory, further frames are the other buffers
    LINK     the further frames are a message of the link protocol (``link_wire.py``)

Owns that layout and the size limits; never looks into a body. What does not fit the layout raises ``WireError``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence, Sized

from ..policies.cluster.chunk_order import Traffic as Traffic
from .errors import MessageTooLarge, TransportError

Buffer = bytes | bytearray | memoryview  # contiguous
Batch = Iterator[tuple[memoryview, list[memoryview]]]  # (body, buffers) of each message

# kinds of message; 3 to 5 belong to ``handshake.py``
BATCH = 1
SINGLE = 2
SHARED = 6
ALONE = 7
LINK = 16
MAX_BODY = 8 << 20  # bytes of one message without its buffers
MAX_FRAME = 256 << 20  # bytes of one buffer
MAX_FRAMES = 1024  # frames of one message
BATCH_LIMIT = 64 << 10  # bytes; a larger message is never copied into a batch
BATCH_BYTES, BATCH_PARTS = MAX_BODY, 1 << 16  # of one batch
MORE = 1 << 31  # flag in a length
ALONE_MARK, SINGLE_MARK, SHARED_MARK, LINK_MARK = (bytes([mark]) for mark in (ALONE, SINGLE, SHARED, LINK))
_HEAD = struct.Struct("<B3xI")


class WireError(TransportError):
    """A received message that does not fit the layout."""


def pack_batch(lengths: Sequence[int], parts: Sequence[Buffer]) -> bytes:
    """Pack the parts of small messages into one frame.

    ``lengths`` are the lengths of the parts, with ``MORE`` where a message goes on.
    """
    count = len(lengths)
    if count == 1:
        return ALONE_MARK + parts[0]
    return b"".join((_HEAD.pack(BATCH, count), struct.pack(f"<{count}I", *lengths), *parts))


def unpack_batch(frame: bytes) -> Batch:
    """Return (body, buffers) of each message of a BATCH frame, in order.

    Bodies are views of ``frame``. Buffers are copies, so they are aligned, and a buffer that is kept does not keep the
    rest. Raises WireError before the first message, or never.
    """
    if len(frame) < _HEAD.size:
        raise WireError("a batch ends within its head")
    _, count = _HEAD.unpack_from(frame)
    at = _HEAD.size + 4 * count
    if not 0 < count <= BATCH_PARTS or at > len(frame):
        raise WireError(f"a batch of {len(frame)} bytes announces {count} parts; 1 to {BATCH_PARTS} may come")
    lengths = struct.unpack_from(f"<{count}I", frame, _HEAD.size)
    size = sum([length & ~MORE for length in lengths])
    if at + size != len(frame) or lengths[-1] & MORE:
        raise WireError(f"a batch announces {size} bytes and holds {len(frame) - at}")
    return _messages(memoryview(frame), lengths, at)


def _messages(view: memoryview, lengths: Sequence[int], at: int) -> Batch:
    several: list[memoryview] = []  # parts of a message with more parts
    for length in lengths:
        part = view[at : (at := at + (length & ~MORE))]
        if several:
            several.append(memoryview(bytes(part)))
        elif length & MORE:
            several.append(part)
        else:
            yield part, []
        if several and not length & MORE:
            yield several[0], several[1:]
            several = []


def check_sizes(body: bytes, buffers: Sequence[Sized]) -> None:
    """Raise MessageTooLarge if the receiver would refuse these, or libzmq would cut the connection (MAXMSGSIZE)."""
    if len(body) > MAX_BODY:
        raise MessageTooLarge(f"a message body of {len(body)} bytes exceeds {MAX_BODY}; send large data as buffers")
    if len(buffers) > MAX_FRAMES - 4:
        raise MessageTooLarge(f"{len(buffers)} buffers exceed {MAX_FRAMES - 4} in one message; join or split them")
    for buffer in buffers:
        if len(buffer) > MAX_FRAME:
            raise MessageTooLarge(f"a buffer of {len(buffer)} bytes exceeds {MAX_FRAME}; cut it into pieces")


def checked(body: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers as plain bytes, ready to be sent. Raises MessageTooLarge."""
    flat: list[Buffer] = [b.cast("B") if isinstance(b, memoryview) and b.format != "B" else b for b in buffers]
    check_sizes(body, flat)
    return flat
