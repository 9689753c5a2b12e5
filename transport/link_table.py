"""All tensor links of one node, both ends: senders, receivers, and attached shared memory.

Owns the senders and receivers by the life of the peer, this process's pool of slots, the acknowledgements, and the
release of slots that are no longer read. Releases are numbered and repeated until the owner has confirmed them, because a
lost one would hold a slot for ever. The node above says which peers exist and gets complete messages; the carriers below
carry frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..policies.cluster.chunk_order import Traffic
from ..policies.cluster.link_kind import LinkKind, choose_kind
from . import link_wire
from .address import PeerId
from .clock import Clock, Timer
from .device_link import DeviceRing, RingReader
from .device_memory import DeviceMemory, DeviceMemoryError
from .errors import PeerGone, QueueFull
from .link import Link, LinkCarrier
from .link_receiver import BUDGET, Arrivals, Budget
from .link_wire import ArrivedChunk, LinkOpen, Posted, Release, Released, Welcome
from .nccl_link import Nccl, NcclReceiver, NcclSender, parse_pair_offer
from .shared_memory import PINNED_BYTES, POOL_BYTES, SharedPool, Slot, attach
from .transfer import SHARE_LEAST
from .wire import Buffer, WireError

log = logging.getLogger("blockwright.transport")
ACK_COUNT, ACK_BYTES, ACK_DELAY = (
    16,
    1 << 20,
    0.01,
)  # activations up to this size wait for an ack; seconds
AGAIN = 0.05  # seconds after a broken connection until its peer gets the counts again
Deliver = Callable[[PeerId, Traffic, bytes, list[memoryview]], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """The buffers of a message, some of them in shared memory."""

    places: bytes  # bytes and slot of each
    frames: list[Buffer]  # buffers that are in no slot
    slots: list[Slot]


class _From:
    """The receiver's end for one peer."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self.ack_due = False
        self.ack_later: Timer | None = None
        self.unacknowledged = 0  # chunks received since the last acknowledgement
        self.serial = 0  # serial of the last release
        self.unconfirmed: deque[tuple[int, list[int]]] = deque()  # (serial, slots)


class LinkTable:
    """The links of one node (see the module). ``carrier`` takes frames to every other node.

    Everything runs on one loop. share: offer and attach shared memory; may be changed as long as there are no links.
    """

    def __init__(self, me: PeerId, carrier: LinkCarrier, clock: Clock, deliver: Deliver, *, share: bool = True) -> None:
        self.me = me
        self._carrier = carrier
        self._clock = clock
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._links: dict[PeerId, Link] = {}
        self._from: dict[PeerId, _From] = {}
        self._releases_seen: dict[PeerId, int] = {}
        self._budget = Budget(BUDGET, self._soon)
        self._read: deque[tuple[PeerId, int]] = deque()  # slots that are read no more; appended to by any thread
        self._turn_due = False
        self.share = share
        self._shared: SharedPool | None = None
        self._device: DeviceMemory | None = None
        self._nccl: Nccl | None = None
        self._slots: DeviceRing | None = None
        self._closing: list[RingReader | NcclSender | NcclReceiver] = []  # of peers that are gone
        self._closed = False

    def offer_device(self, memory: DeviceMemory, nccl: Nccl | None = None) -> None:
        """Let tensors travel through slots in a device's memory, from and to peers that use it, too.

        To other cards they go by ``nccl``, and through shared memory that is pinned for the device. Raises
        DeviceMemoryError if there are no slots; the other ways are used even so.
        """
        self._device, self._nccl = memory, nccl
        if self._shared is not None:
            self._pin(self._shared)
        try:
            self._slots = DeviceRing(memory)
        finally:
            for link in self._links.values():
                link.renew()

    def link(self, peer: PeerId) -> Link:
        """Return the one sender to this life of a node; make it on first use."""
        link = self._links.get(peer)
        if link is None:
            carrier = _ToSelf(self) if peer == self.me else self._carrier
            link = self._links[peer] = Link(peer, carrier, self._clock, self._pool, lambda: self._slots, self._open_nccl)
        return link

    def kind(self, peer: PeerId) -> str:
        """Return the kind of the link to this life of a node; empty while there is none."""
        link = self._links.get(peer)
        return link.kind if link is not None else ""

    # ---- large buffers of other messages

    def place(self, peer: PeerId, buffers: Sequence[Buffer]) -> Placed | None:
        """Lay large buffers into slots that ``peer`` can read.

        Returns None if there are no slots, or the peer cannot read them (yet).
        """
        large = [at for at, buffer in enumerate(buffers) if len(buffer) >= SHARE_LEAST]
        if not large or not self.link(peer).attached or (pool := self._pool()) is None:
            return None
        slots = {at: slot for at in large if (slot := pool.allocate(len(buffers[at]))) is not None}
        if not slots:
            return None
        for at, slot in slots.items():
            slot.view[:] = buffers[at]
        offsets = [slots[at].offset if at in slots else 0 for at in range(len(buffers))]
        places = link_wire.pack_buffers([len(buffer) for buffer in buffers], offsets)
        return Placed(places, [buffer for at, buffer in enumerate(buffers) if at not in slots], list(slots.values()))

    def lend(self, peer: PeerId, placed: Placed) -> None:
        """Mark sent slots as held by the peer until it releases them."""
        for slot in placed.slots:
            if self._shared is not None:
                self._shared.lend(peer, slot)

    def restore(self, peer: PeerId, places: Buffer, frames: list[memoryview]) -> list[memoryview]:
        """Return all buffers of a message in order: views of slots and buffers from frames. Raises WireError."""
        known = self._from.get(peer)
        rest = iter(frames)
        buffers = list[memoryview]()
        for size, slot in link_wire.parse_buffers(places):
            if slot and known is not None:
                buffers.append(known.arrivals.view(slot, size))
            elif slot or (frame := next(rest, None)) is None or len(frame) != size:
                raise WireError(f"{peer} sends a buffer of {size} bytes that is not there")
            else:
                buffers.append(frame)
        return buffers

    # ---- frames, losses and the end

    def on_frames(self, peer: PeerId, frames: list[memoryview]) -> None:
        """Handle a message of the link protocol. Raises WireError."""
        message = link_wire.parse(frames)
        if isinstance(message, ArrivedChunk):
            if (known := self._from.get(peer)) is not None:
                try:
                    known.arrivals.on_piece(message)
                    if message.laid is not None:
                        self._tell_posted(peer, known)
                finally:
                    small = message.kind is Traffic.ACTIVATION and message.size <= ACK_BYTES
                    self._acknowledge(peer, known, urgent=not small)
        elif isinstance(message, LinkOpen):
            self._on_open(peer, message)
        elif isinstance(message, Release):
            self._on_release(peer, message)
        elif isinstance(message, Released):
            known = self._from.get(peer)
            while known is not None and known.unconfirmed and known.unconfirmed[0][0] <= message.serial:
                known.unconfirmed.popleft()
        elif (link := self._links.get(peer)) is None:
            raise WireError(f"{peer} answers on a link that was not opened")
        elif isinstance(message, Welcome):
            link.on_welcome(message)
        elif isinstance(message, Posted):
            link.on_posted(message)
        else:
            link.on_ack(message)

    def on_broken(self, peer: PeerId) -> None:
        """Handle a broken connection to ``peer``; it may be made again."""
        if (link := self._links.get(peer)) is not None:
            link.on_broken()
        if peer in self._from:
            self._clock.call_at(self._clock.now() + AGAIN, partial(self._tell_again, peer))

    def drop(self, peer: PeerId, why: str) -> None:
        """End the links of a life of ``peer`` that is over: its transfers fail, slots lent to it return."""
        if (link := self._links.pop(peer, None)) is not None:
            link.gone(why)
            self._close(link.nccl)
        known = self._from.pop(peer, None)
        if known is not None:
            if (reader := known.arrivals.reader) is not None:
                self._closing.append(reader)
                reader.close()
            self._close(known.arrivals.end_nccl(why))
            if known.arrivals.pinned and self._device is not None and known.arrivals.attached is not None:
                self._device.unpin(known.arrivals.attached.address)
        self._releases_seen.pop(peer, None)
        if self._shared is not None:
            self._shared.forget(peer)
        if self._slots is not None:
            self._slots.forget(peer)

    def inspect(self) -> dict[str, Any]:
        """Return the state of both ends of every link as plain data."""
        shared = self._shared
        return {
            "to": {str(peer): link.inspect() for peer, link in self._links.items()},
            "from": {str(peer): known.arrivals.inspect() for peer, known in self._from.items()},
            "slots_free_bytes": shared.free if shared is not None else 0,
            "device_slots_free": self._slots.free if self._slots is not None else 0,
            "assembling_bytes": self._budget.used,
        }

    def close(self) -> None:
        """Close all links. Idempotent."""
        self._closed = True
        for peer in {*self._links, *self._from}:
            self.drop(peer, f"this node ({self.me}) stopped")
        if self._shared is not None:
            self._shared.close()
        if self._slots is not None:
            self._slots.close()

    # ---- the receiver's end

    def _on_open(self, peer: PeerId, message: LinkOpen) -> None:
        known = self._from.get(peer)
        if known is None:
            deliver = partial(self._deliver, peer)
            known = self._from[peer] = _From(Arrivals(self._budget, deliver, partial(self._released, peer)))
        arrivals = known.arrivals
        kind, refused = self._choose(peer, message.offers, arrivals)
        attached = arrivals.attached is not None
        welcome = Welcome(message.attempt, kind, attached, arrivals.received, arrivals.taken, refused)
        self._tell(peer, link_wire.pack_welcome(welcome))
        self._tell_posted(peer, known)

    def _choose(self, peer: PeerId, offers: dict[LinkKind, bytes], arrivals: Arrivals) -> tuple[LinkKind, str]:
        """Return the kind of the link, with what it needs opened, and why a faster one was refused. Raises WireError."""
        able, refused = set(LinkKind), ""
        if self._device is None:
            able.discard(LinkKind.DEVICE_SLOT)
        failed = arrivals.nccl.error() if arrivals.nccl is not None else ""
        if failed or LinkKind.NCCL not in offers:
            self._close(arrivals.end_nccl(failed or "the sender offers it no more"))
        if self._device is None or self._nccl is None:
            able.discard(LinkKind.NCCL)
        if (offer := offers.get(LinkKind.SHARED_MEMORY)) is not None:
            shared = link_wire.parse_shared(offer)
            if arrivals.attached is None and self.share:
                arrivals.attached = attach(shared)  # also for buffers of other messages
        if arrivals.attached is None:
            able -= {LinkKind.PINNED_MEMORY, LinkKind.SHARED_MEMORY}
        opened: dict[LinkKind, Callable[[bytes, Arrivals], str]] = {
            LinkKind.DEVICE_SLOT: self._open_slots,
            LinkKind.NCCL: self._join_nccl,
            LinkKind.PINNED_MEMORY: self._pin_attached,
        }
        while (kind := choose_kind(offers.keys(), able)) in opened:
            why = opened[kind](offers[kind], arrivals)
            if not why:
                break
            log.info("node %s refused to read from %s by %s: %s", self.me, peer, kind.label, why)
            able.discard(kind)
            refused = f"{refused}; {why}" if refused else why
        return kind, refused

    def _join_nccl(self, offer: bytes, arrivals: Arrivals) -> str:
        """Join a peer's pairs, unless they are. Return why they cannot be joined."""
        if arrivals.nccl_failed:
            return f"NCCL has failed before: {arrivals.nccl_failed}"
        assert self._device is not None, "it was chosen because there is a device"
        assert self._nccl is not None, "and NCCL"
        try:
            if arrivals.nccl is None or not arrivals.nccl.identities:
                arrivals.nccl = NcclReceiver(self._nccl, self._device, offer, self._clock, self._soon)
            elif parse_pair_offer(offer).identities != arrivals.nccl.identities:
                return "other pairs of NCCL were offered before; a link joins once"
        except DeviceMemoryError as error:
            return str(error)
        return ""

    def _pin_attached(self, offer: bytes, arrivals: Arrivals) -> str:
        """Pin a peer's shared memory for this node's device, if it has one. Return why it cannot be pinned."""
        assert arrivals.attached is not None, "it was chosen because it is attached"
        if self._device is not None and not arrivals.pinned:
            try:
                self._device.pin(arrivals.attached.address, arrivals.attached.size, written=False)
            except DeviceMemoryError as error:
                return str(error)
            arrivals.pinned = True
        return ""

    def _open_slots(self, offer: bytes, arrivals: Arrivals) -> str:
        """Open a peer's device slots, unless they are. Return why they cannot be opened."""
        if arrivals.reader is not None and arrivals.reader.text == offer:
            return ""
        if arrivals.reader is not None:
            return "other device slots were offered before; a life of a node has one ring"
        assert self._device is not None, "it was chosen because there is a device"
        try:
            arrivals.reader = RingReader(self._device, offer, self._soon)
        except DeviceMemoryError as error:
            return str(error)
        return ""

    def _acknowledge(self, peer: PeerId, known: _From, *, urgent: bool = True) -> None:
        """Send one acknowledgement for all chunks of this turn of the loop.

        Activations alone may have many chunks in flight, so they get one acknowledgement for a number of chunks or after
        a while.
        """
        known.unacknowledged += 1
        if urgent or known.unacknowledged >= ACK_COUNT:
            if not known.ack_due:
                known.ack_due = True
                self._loop.call_soon(self._send_ack, peer, known)
        elif not known.ack_due and known.ack_later is None:
            known.ack_later = self._clock.call_at(self._clock.now() + ACK_DELAY, partial(self._send_ack, peer, known))

    def _send_ack(self, peer: PeerId, known: _From) -> None:
        known.ack_due, known.unacknowledged = False, 0
        if known.ack_later is not None:
            known.ack_later.cancel()
            known.ack_later = None
        if self._from.get(peer) is known:
            self._tell(peer, link_wire.pack_ack(known.arrivals.taken))

    def _released(self, peer: PeerId, slot: int) -> None:
        self._read.append((peer, slot))
        self._soon()

    def _soon(self) -> None:
        """Schedule the release of slots that were let go. May be called from any thread."""
        if not self._turn_due and not self._closed:
            self._turn_due = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all links
                self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        slots: dict[PeerId, list[int]] = {}
        while self._read:
            peer, slot = self._read.popleft()
            slots.setdefault(peer, []).append(slot)
        for peer, freed in slots.items():
            if (known := self._from.get(peer)) is not None:
                known.serial += 1
                known.unconfirmed.append((known.serial, freed))
                self._tell(peer, link_wire.pack_release(known.serial, freed))
        for reader in [reader for reader in self._closing if reader.settled]:
            self._closing.remove(reader)
            reader.give_back()
        for peer, known in self._from.items():
            if known.arrivals.nccl is not None and known.arrivals.nccl.post():
                self._tell_posted(peer, known)
        for peer, known in list(self._from.items()):
            before = known.arrivals.taken
            try:
                known.arrivals.resume()
            except WireError as error:
                log.warning("node %s dropped a chunk from %s: %s", self.me, peer, error)
            if known.arrivals.taken != before:
                self._acknowledge(peer, known)

    def _tell_again(self, peer: PeerId) -> None:
        if (known := self._from.get(peer)) is not None:
            self._acknowledge(peer, known)
            for serial, slots in known.unconfirmed:
                self._tell(peer, link_wire.pack_release(serial, slots))

    def _on_release(self, peer: PeerId, message: Release) -> None:
        seen = self._releases_seen.get(peer, 0)
        if message.serial == seen + 1:
            self._releases_seen[peer] = seen = message.serial
            for slot in message.slots:
                if self._shared is None:
                    raise WireError(f"{peer} releases slots of a node that has none")
                self._shared.release(peer, slot)
        self._tell(peer, link_wire.pack_released(seen))

    # ---- shared

    def _tell_posted(self, peer: PeerId, known: _From) -> None:
        if known.arrivals.nccl is not None and any(known.arrivals.nccl.posted):
            self._tell(peer, link_wire.pack_posted(known.arrivals.nccl.posted))

    def _close(self, channel: NcclSender | NcclReceiver | None) -> None:
        """Give a channel's memory back when nothing uses it any more."""
        if channel is not None:
            self._closing.append(channel)
            self._soon()

    def _open_nccl(self) -> NcclSender | None:
        if self._nccl is None or self._device is None:
            return None
        return NcclSender(self._nccl, self._device, self._soon)

    def _pin(self, pool: SharedPool) -> None:
        """Pin this node's shared memory for its device, so that copies need no second one on the way."""
        assert self._device is not None, "it was offered"
        try:
            self._device.pin(pool.address, pool.size, written=True)
            pool.pinned = True
        except DeviceMemoryError as error:
            log.info("shared memory is not pinned: %s", error)

    def _tell(self, peer: PeerId, frame: bytes) -> None:
        carrier = _ToSelf(self) if peer == self.me else self._carrier
        with contextlib.suppress(PeerGone, QueueFull):  # the timer repeats it, or the peer is declared down
            carrier.send_link(peer, [frame])

    def _pool(self) -> SharedPool | None:
        if self._shared is None and self.share and not self._closed:
            try:
                self._shared = SharedPool(POOL_BYTES if self._device is None else PINNED_BYTES)
                if self._device is not None:
                    self._pin(self._shared)
            except OSError as error:
                log.warning("no shared memory, tensors travel in frames: %s", error)
                self.share = False
        return self._shared


class _ToSelf:
    """The carrier of a node to itself."""

    link_kind = "reference"

    def __init__(self, links: LinkTable) -> None:
        self._links = links

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        views = [memoryview(frame) for frame in frames]
        self._links._loop.call_soon(self._links.on_frames, peer, views)
