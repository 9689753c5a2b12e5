"""The wire format of links: message layouts and their checks.

Owns the layouts and their checks; what does not fit raises ``WireError``. Frame 0 starts with a byte that says what it is:

    OPEN     sender to receiver: attempt, and the kinds of link that it offers, each with what the receiver opens: of shared
             memory, process, descriptor, bytes and token; of device slots, the text of a ``RingOffer``; of NCCL, of a
             ``PairOffer``
    WELCOME  the answer: attempt, the kind that was chosen, whether the shared memory is attached, chunks of each class
             received, those taken, and why a faster kind that was offered was refused
    CHUNK    class, number, offset, bytes; if it is the first of its message: the number of buffers, (bytes, slot) of each,
             and the message's header. Further frames: the bytes themselves, except those of buffers that lie in a slot
    LAID     the same, but the bytes of the further frames lie in a device slot: its number, and the length of each frame;
             ``BY_NCCL`` as the number announces bytes that come by NCCL
    POSTED   receiver to sender: numbers of each class below which announced chunks have posted receives
    ACK      chunks of each class that were taken (what was received may wait for memory first)
    RELEASE  receiver to owner of shared memory: serial, offsets of slots that are no longer read
    RELEASED the answer: serial up to which releases have come

All numbers are little-endian. A slot is an offset in the sender's shared memory; 0 means that the bytes travel in frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import NamedTuple

from ..policies.cluster.chunk_order import Traffic
from ..policies.cluster.link_kind import LinkKind
from .wire import MAX_BODY, MAX_FRAME, MAX_FRAMES, Buffer, WireError

OPEN, WELCOME, CHUNK, ACK, RELEASE, RELEASED, LAID, POSTED = range(1, 9)
BY_NCCL = (1 << 32) - 1  # in place of a device slot: the bytes come by NCCL
_CLASSES = dict(enumerate(Traffic))
_KINDS = frozenset(LinkKind)
Counts = tuple[int, int, int]  # chunks of each class
MAX_BUFFERS = MAX_FRAMES - 4  # of one message
MAX_MESSAGE = 1 << 30  # bytes of one message's buffers
MAX_REASON = 400  # bytes of the reason for a refused offer
_OPEN = struct.Struct("<BI")
_OFFER = struct.Struct("<BI")  # kind, bytes that follow
_SHARED = struct.Struct("<IIQ16s")
_WELCOME = struct.Struct("<BIBB3Q3Q")
_LAID = struct.Struct("<I")
_CHUNK = struct.Struct("<BBQQQ")
_ACK = struct.Struct("<B3Q")
_RELEASED = struct.Struct("<BQ")
_COUNT = struct.Struct("<H")
_BUFFER = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class SharedMemoryOffer:
    """The place of a process's shared memory."""

    process: int
    descriptor: int
    size: int  # bytes; 0: there is none
    token: bytes  # 16 bytes at its start


NOTHING = SharedMemoryOffer(0, 0, 0, bytes(16))


@dataclass(frozen=True, slots=True)
class LinkOpen:
    """``offers``: what the receiver opens, by kind; empty where there is nothing to be opened."""

    attempt: int
    offers: dict[LinkKind, bytes]


@dataclass(frozen=True, slots=True)
class Welcome:
    attempt: int
    kind: LinkKind
    attached: bool
    received: Counts
    taken: Counts
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    taken: Counts


@dataclass(frozen=True, slots=True)
class Posted:
    posted: Counts


@dataclass(frozen=True, slots=True)
class Release:
    serial: int  # from 1
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Released:
    serial: int


class Description(NamedTuple):
    """The description of a message, in its first chunk."""

    header: bytes
    sizes: tuple[int, ...]  # bytes of each buffer
    slots: tuple[int, ...]  # offset in shared memory of each buffer, or 0

    @property
    def total(self) -> int:
        return sum(self.sizes)


class ArrivedChunk(NamedTuple):
    """A chunk as it arrived."""

    kind: Traffic
    number: int
    offset: int
    size: int
    description: Description | None  # of the first chunk of a message
    frames: list[memoryview]
    laid: tuple[int, tuple[int, ...]] | None = None  # device slot, and the lengths of the frames that lie there


Message = LinkOpen | Welcome | ArrivedChunk | Ack | Posted | Release | Released


def pack_open(attempt: int, offers: Mapping[LinkKind, bytes]) -> bytes:
    parts = [_OFFER.pack(kind, len(offer)) + offer for kind, offer in offers.items()]
    return b"".join([_OPEN.pack(OPEN, attempt), *parts])


def pack_shared(offer: SharedMemoryOffer) -> bytes:
    return _SHARED.pack(offer.process, offer.descriptor, offer.size, offer.token)


def parse_shared(offer: bytes) -> SharedMemoryOffer:
    """Parse the offer of shared memory. Raises WireError."""
    if len(offer) != _SHARED.size:
        raise WireError(f"{len(offer)} bytes do not offer shared memory")
    return SharedMemoryOffer(*_SHARED.unpack(offer))


def pack_welcome(welcome: Welcome) -> bytes:
    head = _WELCOME.pack(WELCOME, welcome.attempt, welcome.kind, welcome.attached, *welcome.received, *welcome.taken)
    return head + welcome.refused.encode()[:MAX_REASON]


def pack_laid(head: bytes, slot: int, frames: Sequence[Sized]) -> list[Buffer]:
    """Return the frames of a chunk whose bytes lie in a device slot. ``head``: its frame 0 as if it had the bytes."""
    lengths = [len(frame) for frame in frames]
    return [bytes([LAID]) + head[1:], _LAID.pack(slot) + struct.pack(f"<{len(lengths)}I", *lengths)]


def pack_chunk(kind: Traffic, number: int, offset: int, size: int) -> bytes:
    return _CHUNK.pack(CHUNK, kind, number, offset, size)


def pack_first(kind: Traffic, number: int, size: int, sizes: Sequence[int], slots: Sequence[int], header: bytes) -> bytes:
    """Pack the first chunk of a message."""
    return b"".join([_CHUNK.pack(CHUNK, kind, number, 0, size), _COUNT.pack(len(sizes)), pack_buffers(sizes, slots), header])


def pack_ack(taken: Sequence[int]) -> bytes:
    return _ACK.pack(ACK, *taken)


def pack_posted(posted: Sequence[int]) -> bytes:
    return _ACK.pack(POSTED, *posted)


def pack_release(serial: int, slots: Sequence[int]) -> bytes:
    return struct.pack(f"<BQ{len(slots)}Q", RELEASE, serial, *slots)


def pack_released(serial: int) -> bytes:
    return _RELEASED.pack(RELEASED, serial)


def pack_buffers(sizes: Sequence[int], slots: Sequence[int]) -> bytes:
    return b"".join([_BUFFER.pack(size, slot) for size, slot in zip(sizes, slots, strict=True)])


def parse_buffers(frame: Buffer) -> list[tuple[int, int]]:
    """Return (bytes, slot) of each buffer. Raises WireError."""
    if len(frame) % _BUFFER.size or len(frame) > MAX_BUFFERS * _BUFFER.size:
        raise WireError(f"{len(frame)} bytes do not describe buffers")
    return list(_BUFFER.iter_unpack(frame))


def ranges(sizes: Sequence[int], offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Return (buffer, start, stop) of the bytes ``offset`` to ``offset + size`` of all buffers laid end to end."""
    end, at = offset + size, 0
    for index, length in enumerate(sizes):
        start, stop = max(offset - at, 0), min(end - at, length)
        if start < stop:
            yield index, start, stop
        at += length
        if at >= end:
            return


def link_class(head: memoryview) -> Traffic:
    """Return the class of a chunk, from its first frame; messages about the link itself have the most urgent class."""
    return Traffic(head[1]) if head[0] in (CHUNK, LAID) else Traffic.ACTIVATION


def parse(frames: Sequence[memoryview]) -> Message:
    """Parse the frames of a link message. Raises WireError."""
    if not frames or not len(frames[0]):
        raise WireError("an empty link message")
    head = frames[0]
    try:
        if head[0] == CHUNK:
            return _piece(head, frames)
        if head[0] == LAID:
            return _laid(head, frames)
        if len(frames) != 1:
            raise WireError(f"a link message {head[0]} of {len(frames)} frames")
        if head[0] == ACK:
            return Ack(_ACK.unpack(head)[1:])
        if head[0] == POSTED:
            return Posted(_ACK.unpack(head)[1:])
        if head[0] == OPEN:
            return LinkOpen(_OPEN.unpack_from(head)[1], _offers(head))
        if head[0] == WELCOME:
            return _welcome(head)
        if head[0] == RELEASE:
            _, serial, *slots = struct.unpack(f"<BQ{(len(head) - 9) // 8}Q", head)
            return Release(serial, tuple(slots))
        if head[0] == RELEASED:
            return Released(_RELEASED.unpack(head)[1])
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"a link message {head[0]} of {len(head)} bytes: {error}") from error
    raise WireError(f"unknown link message {head[0]}")


def _offers(head: memoryview) -> dict[LinkKind, bytes]:
    offers, at = dict[LinkKind, bytes](), _OPEN.size
    while at < len(head):
        kind, size = _OFFER.unpack_from(head, at)
        at += _OFFER.size + size
        if kind not in _KINDS or at > len(head):
            raise WireError(f"an offer of {size} bytes of an unknown kind {kind}, or cut off")
        offers[LinkKind(kind)] = bytes(head[at - size : at])
    return offers


def _welcome(head: memoryview) -> Welcome:
    _, attempt, kind, attached, *counts = _WELCOME.unpack_from(head)
    if kind not in _KINDS or len(head) > _WELCOME.size + MAX_REASON:
        raise WireError(f"a welcome of {len(head)} bytes to a link of kind {kind}")
    refused = str(head[_WELCOME.size :], "utf-8", "replace")
    one, two = (counts[0], counts[1], counts[2]), (counts[3], counts[4], counts[5])
    return Welcome(attempt, LinkKind(kind), bool(attached), one, two, refused)


def _laid(head: memoryview, frames: Sequence[memoryview]) -> ArrivedChunk:
    if len(frames) != 2 or len(frames[1]) > _LAID.size + 4 * MAX_FRAMES:
        raise WireError(f"a chunk in a device slot of {len(frames)} frames")
    (slot,) = _LAID.unpack_from(frames[1])
    lengths = struct.unpack(f"<{(len(frames[1]) - _LAID.size) // 4}I", frames[1][_LAID.size :])
    piece = _piece(head, frames[:1])
    return ArrivedChunk(piece.kind, piece.number, piece.offset, piece.size, piece.description, [], (slot, lengths))


def _piece(head: memoryview, frames: Sequence[memoryview]) -> ArrivedChunk:
    _, kind, number, offset, size = _CHUNK.unpack_from(head)
    if kind not in _CLASSES:
        raise WireError(f"unknown traffic class {kind}")
    if offset:
        return ArrivedChunk(_CLASSES[kind], number, offset, size, None, list(frames[1:]))
    (count,) = _COUNT.unpack_from(head, _CHUNK.size)
    begin = _CHUNK.size + _COUNT.size
    end = begin + count * _BUFFER.size
    described = parse_buffers(head[begin:end])
    sizes = tuple([size for size, _ in described])
    if len(sizes) != count or len(head) - end > MAX_BODY or max(sizes, default=0) > MAX_FRAME or sum(sizes) > MAX_MESSAGE:
        raise WireError(f"a message of {sum(sizes)} bytes in {len(sizes)} of {count} buffers, {len(head)} bytes in its head")
    description = Description(bytes(head[end:]), sizes, tuple([slot for _, slot in described]))
    return ArrivedChunk(_CLASSES[kind], number, 0, size, description, list(frames[1:]))
