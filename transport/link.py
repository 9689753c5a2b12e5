"""The sender's end of a tensor link: ordered, one-way, to one life of a node, apart from mailbox traffic.

Owns the link's life (asking the receiver until it answers, again after a broken connection), the messages that are sent
but not acknowledged, the pace of a limited link, and the measurement of bandwidth. ``chunk_order`` picks the next chunk;
the carrier takes frames to the peer. Never looks into headers or buffers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..policies.cluster.chunk_order import Chunk, ChunkOrder, Traffic
from ..policies.cluster.link_kind import LinkKind
from . import link_wire, wire
from .address import PeerId
from .clock import Clock, Timer
from .device_link import DeviceRing
from .device_memory import DeviceBytes, host_bytes
from .errors import MessageTooLarge, PeerGone, QueueFull
from .nccl_link import NcclSender
from .shared_memory import SharedPool, Slot
from .transfer import OutgoingTransfer, Transfer, as_bytes
from .wire import Buffer

__all__ = ["Link", "Slot", "Traffic", "Transfer"]
QUEUE_MESSAGES = 8192
QUEUE_BYTES = 2 << 30  # by reference, unsent
RETRY, LONGEST_RETRY = 0.02, 1.0  # seconds until the receiver is asked again, doubling
PATIENCE = 1.0  # seconds without an acknowledgement until the receiver is asked for its counts
SHARED = (LinkKind.PINNED_MEMORY, LinkKind.SHARED_MEMORY)
SLACK = 0.01  # seconds that a limited link may catch up after its timer came late


class LinkCarrier(Protocol):
    """The carrier that takes frames to a peer, in order, until the connection breaks."""

    link_kind: str  # "reference" or "frames"

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None: ...


class Link:
    """The sender's end of a link (see the module). ``pool`` and ``ring``: the slots to send from, if this node has any.

    ``open_nccl`` makes the link's own NCCL channel; None without a card.
    """

    def __init__(
        self,
        peer: PeerId,
        carrier: LinkCarrier,
        clock: Clock,
        pool: Callable[[], SharedPool | None],
        ring: Callable[[], DeviceRing | None],
        open_nccl: Callable[[], NcclSender | None],
    ) -> None:
        self.peer = peer
        self.rate: float | None = None
        self._carrier = carrier
        self._clock = clock
        self._pool, self._ring = pool, ring
        self._open_nccl = open_nccl
        self.nccl: NcclSender | None = None  # this link's channel, once there is a card
        self._by_reference = carrier.link_kind == "reference"
        self._kind = LinkKind.REFERENCE if self._by_reference else LinkKind.FRAMES  # until the receiver answers
        self._refused = ""  # why a faster kind was not chosen
        self._order = ChunkOrder(whole=self._by_reference)
        self._messages: dict[int, OutgoingTransfer] = {}
        self._numbers = itertools.count()
        self._bytes = 0  # of the messages
        self._taken = (0, 0, 0)  # chunks of each class that the receiver has
        self._attempt = 0
        self._asked = self._open = self._attached = False
        self._why = ""  # why the peer is gone
        self._delay = RETRY
        self._timer: Timer | None = None  # asks again
        self._pacer: Timer | None = None  # continues when the rate allows
        self._free_at = 0.0  # time at which the rate allows the next chunk
        self._busy_since, self._busy_bytes = 0.0, 0  # acknowledged since the last measurement
        self._ask()

    @property
    def rate(self) -> float | None:
        """The bytes per second that the link may send, None for no limit.

        It may be set at any time. Raises ValueError.
        """
        return self._rate

    @rate.setter
    def rate(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ValueError(f"a rate of {rate} bytes per second sends nothing; give more than 0, or None for no limit")
        self._rate = rate

    @property
    def kind(self) -> str:
        """The name of the ``LinkKind`` by which chunks go now; "reference" or "frames" until the receiver has answered."""
        return self._way.label

    @property
    def attached(self) -> bool:
        """True if the peer reads this node's shared memory, whatever way tensors go."""
        return self._attached

    def send(self, kind: Traffic, header: bytes = b"", buffers: Sequence[Buffer | Slot | DeviceBytes] = ()) -> Transfer:
        """Queue one message. It arrives after all earlier ones of its class on this link, or the peer is lost.

        ``buffers`` (anything with contiguous memory, which arrives as its bytes) must not change until the transfer is
        done, because they are not copied. At most 256 MiB each, 1 GiB together. Raises PeerGone, QueueFull,
        MessageTooLarge, ValueError, TypeError.
        """
        if self._why:
            raise PeerGone(self._why)
        kind, header = (
            Traffic(kind),
            bytes(as_bytes(header)),
        )  # a bad message fails here, not in the queue
        views = [b.view if isinstance(b, Slot) else b if isinstance(b, DeviceBytes) else as_bytes(b) for b in buffers]
        wire.check_sizes(header, views)
        sizes = tuple([len(view) for view in views])
        size = sum(sizes)
        if size > link_wire.MAX_MESSAGE:
            raise MessageTooLarge(f"a message of {size} bytes exceeds {link_wire.MAX_MESSAGE}; send it in parts")
        if self._messages and (len(self._messages) >= QUEUE_MESSAGES or self._bytes + size > QUEUE_BYTES):
            raise QueueFull(
                f"{len(self._messages)} messages of {self._bytes} bytes wait for {self.peer}; send less or slower"
            )
        transfer, number = Transfer(self.peer, kind, size), next(self._numbers)
        slots = [buffer if isinstance(buffer, Slot) else None for buffer in buffers]
        self._messages[number] = OutgoingTransfer(transfer, header, views, sizes, slots)
        self._bytes += size
        self._order.add(kind, number, size)
        self._pump()
        return transfer

    @property
    def reads_device(self) -> bool:
        """True if tensors go by a way that copies from the memory of a device: ``DeviceBytes`` are sent as they are."""
        return self._way in (LinkKind.DEVICE_SLOT, LinkKind.NCCL)

    def slot(self, size: int) -> Slot | None:
        """Return memory that the peer can read, to be written and sent as a buffer, or None if there is none.

        May be called from any thread.
        """
        pool = self._pool() if self._way in SHARED else None
        return pool.allocate(size) if pool is not None else None

    def inspect(self) -> dict[str, Any]:
        """Return the sender's state as plain data."""
        return {
            "kind": self.kind,
            "refused": self._refused,
            "open": self._open,
            "messages": len(self._messages),
            "bytes": sum(m.transfer.size - m.transfer.acknowledged for m in self._messages.values()),
            "acknowledged_chunks": {kind.name: self._taken[kind] for kind in Traffic},
            "unacknowledged_chunks": self._order.unacknowledged,
            "bandwidth": self._order.bandwidth,
            "chunk_bytes": self._order.chunk_bytes,
            "attempts": self._attempt,
        }

    # ---- called by the link table

    def on_welcome(self, welcome: link_wire.Welcome) -> None:
        """Read the receiver's counts and send the rest, again where needed.

        Only the first answer to the last question counts: a late copy knows less than was acknowledged since.
        """
        if welcome.attempt != self._attempt or not self._asked or self._why:
            return
        self._asked = False
        if any(have < known for have, known in zip(welcome.taken, self._taken, strict=True)):
            self.gone(f"node {self.peer} has lost what it had acknowledged")
            return
        self._open = True
        self._kind, self._refused = welcome.kind, welcome.refused
        self._attached = welcome.attached
        self._delay = RETRY
        self._cancel_timer()
        self._settle(welcome.taken)
        if self.nccl is not None:
            self.nccl.rewind(welcome.received)
            if self._kind is not LinkKind.NCCL:
                self.nccl.leave(f"the receiver chose {self._kind.label}")
            elif self.nccl.begin():
                self.renew()
        self._order.rewind(dict(zip(Traffic, welcome.received, strict=True)))
        self._busy_bytes = 0
        self._pump()
        if self._open and self._timer is None and self._order.unacknowledged:
            self._arm(PATIENCE, self._check, self._taken)  # what the receiver waits for may never come

    def on_ack(self, ack: link_wire.Ack) -> None:
        if self._why:
            return
        self._settle(ack.taken)
        self._pump()

    def on_posted(self, posted: link_wire.Posted) -> None:
        """Send by NCCL what the receiver waits for."""
        if self.nccl is not None and not self._why:
            self.nccl.on_posted(posted.posted)

    def renew(self) -> None:
        """Ask the receiver again, because this end has more to offer."""
        if not self._why:
            self._cancel_timer()
            self._ask()

    def on_broken(self) -> None:
        """Ask the receiver again after a while, since frames in flight may be lost."""
        if not self._open:
            return  # it asks again anyway
        self._open = False
        self._cancel_timer()
        self._arm(self._delay, self._ask)

    def gone(self, why: str) -> None:
        """Fail every unfinished transfer, because the life of the peer is over. Idempotent."""
        self._why = self._why or why
        self._open = False
        if self.nccl is not None:
            self.nccl.abort(self._why)
        self._cancel_timer()
        if self._pacer is not None:
            self._pacer.cancel()
        messages, self._messages = self._messages, {}
        for message in messages.values():
            message.transfer.fail(self._why)

    # ---- internal

    def _ask(self) -> None:
        """Ask the receiver for its counts.

        Nothing is sent until it answers, so everything that it received came before the question.
        """
        self._asked, self._open = True, False
        self._attempt += 1
        self._timer = None
        self._arm(self._delay, self._ask)
        self._delay = min(2 * self._delay, LONGEST_RETRY)
        self._offer([link_wire.pack_open(self._attempt, self._offers())])

    def _offers(self) -> dict[LinkKind, bytes]:
        """Return the kinds that this end has, each with what the receiver opens."""
        if self._by_reference:
            return {LinkKind.REFERENCE: b""}
        offers = {LinkKind.FRAMES: b""}
        if (pool := self._pool()) is not None:
            offers[LinkKind.SHARED_MEMORY] = link_wire.pack_shared(pool.offer)
            if pool.pinned:
                offers[LinkKind.PINNED_MEMORY] = b""
        if self.nccl is None:
            self.nccl = self._open_nccl()
        if self.nccl is not None and not self.nccl.error():
            offers[LinkKind.NCCL] = self.nccl.offer
        if (ring := self._ring()) is not None:
            offers[LinkKind.DEVICE_SLOT] = ring.offer
        return offers

    @property
    def _way(self) -> LinkKind:
        """The kind by which the next chunk goes: the chosen one, but by NCCL only when all pairs have joined."""
        if self._kind is not LinkKind.NCCL or (self.nccl is not None and self.nccl.ready):
            return self._kind
        return LinkKind.SHARED_MEMORY if self._attached and self._pool() is not None else LinkKind.FRAMES

    def _offer(self, frames: list[Buffer]) -> bool:
        try:
            self._carrier.send_link(self.peer, frames)
        except (PeerGone, QueueFull):  # the table reports the peer's end; else the timer asks again
            return False
        return True

    def _pump(self) -> None:
        while self._open:
            if self.rate is not None and (wait := self._free_at - self._clock.now()) > 0:
                if self._pacer is None:
                    self._pacer = self._clock.call_at(self._clock.now() + wait, self._go_on)
                return
            idle = not self._order.unacknowledged
            chunk = self._order.next()
            if chunk is None:
                return
            if idle:
                self._busy_since, self._busy_bytes = self._clock.now(), 0
            self._transmit(chunk)

    def _go_on(self) -> None:
        self._pacer = None
        self._pump()

    def _transmit(self, chunk: Chunk) -> None:
        way = self._way
        shared = self._pool() if way in SHARED else None
        if self.rate is not None:
            self._free_at = max(self._free_at, self._clock.now() - SLACK) + chunk.size / self.rate
        message = self._messages[chunk.message]
        frames = message.frames(chunk, shared, self._by_reference)
        if way is LinkKind.NCCL and self.nccl is not None:
            frames = self.nccl.lay(chunk, frames)
        if way is LinkKind.DEVICE_SLOT and (ring := self._ring()) is not None:
            frames = ring.lay(self.peer, chunk, frames)
        # what is of a device still travels as bytes
        if not self._offer(list(map(host_bytes, frames))):
            self.on_broken()
        elif self._timer is None:
            self._arm(PATIENCE, self._check, self._taken)

    def _settle(self, taken: link_wire.Counts) -> None:
        """Record the counts that the receiver acknowledged."""
        self._taken = (
            max(self._taken[0], taken[0]),
            max(self._taken[1], taken[1]),
            max(self._taken[2], taken[2]),
        )
        for chunk in self._order.acknowledge(dict(zip(Traffic, taken, strict=True))):
            self._busy_bytes += chunk.size
            if (ring := self._ring()) is not None:
                ring.release(self.peer, chunk)
            if self.nccl is not None:
                self.nccl.release(chunk)
            transfer = self._messages[chunk.message].transfer
            if chunk.last:
                del self._messages[chunk.message]
                self._bytes -= transfer.size
            transfer.acknowledge(chunk)
        now = self._clock.now()
        elapsed = now - self._busy_since
        if elapsed >= self._order.target or not self._order.unacknowledged:
            if self.rate is not None:
                elapsed = max(elapsed, self._busy_bytes / self.rate)
            self._order.measure(self._busy_bytes, elapsed)
            self._busy_since, self._busy_bytes = now, 0

    def _check(self, before: link_wire.Counts) -> None:
        """Check whether chunks that are long unacknowledged were lost."""
        self._timer = None
        if not self._order.unacknowledged:
            return
        if self._taken == before:
            self._ask()
        else:
            self._arm(PATIENCE, self._check, self._taken)

    def _arm(self, seconds: float, then: Callable[..., None], *arguments: object) -> None:
        self._timer = self._clock.call_at(self._clock.now() + seconds, lambda: then(*arguments))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
