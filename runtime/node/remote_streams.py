"""Streams between nodes, both ends.

    consumer                                  producer
    OPEN id, ..., window           ->         waits in the mailbox, then runs beside it
                                   <-         ITEM id, number, typed, value
    CREDIT id, items, bytes        ->         totals taken so far
                                   <-         END id, items sent   or   FAULT id, ...
    CANCEL id                      ->         the consumer closed

Items are numbered: one that is missing ends the stream with an error, one that comes twice is dropped. Both ends count the
bytes of an item alike (body and buffers), so that a producer which ignores its window is found out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ...transport.clock import Clock
from ...transport.errors import MessageTooLarge, PeerGone, QueueFull
from ...transport.wire import Buffer
from ..actor.endpoint import ActorEndpoint
from ..actor.instance import ActorInstance, Delivery
from ..actor.streams import Inlet, LocalOutlet
from ..base import envelope
from ..base.address import Address
from ..base.buffers import Sink
from ..base.codec import encode, pack
from ..base.decoding import received
from ..base.errors import DecodeError, EncodeError, RuntimeFault, fault_to_wire
from ..base.scope import inherited_deadline
from ..base.window import WINDOW_BYTES, WINDOW_ITEMS, Window
from .incoming_calls import Admitted
from .peers import Peer
from .requests import Requests
from .sender import PeerSender

MOST_ITEMS, MOST_BYTES = 4096, 64 << 20  # of a window that a peer may ask for


class RemoteInlet(Inlet):
    """Knows what came, and gives credit in portions of half a window."""

    __slots__ = ("_credited_bytes", "_credited_items", "_number", "_peer", "_received", "_sender", "_waiting")

    def __init__(
        self, sender: PeerSender, clock: Clock, peer: Peer, number: int, target: Address, endpoint: str, returns: Any
    ) -> None:
        super().__init__(f"{target}.{endpoint}", clock, self._on_credit, self._left)
        self._sender = sender
        self._peer = peer
        self._number = number
        self._received = self._credited_items = self._credited_bytes = self._waiting = 0
        self.convert = lambda item: received("an item", target, endpoint, item[0], item[1], returns)

    def receive(self, number: int, typed: bool, value: Any, size: int) -> None:
        if number <= self._received:
            return
        if number != self._received + 1:
            self.broken(f"item {self._received + 1} of {self._label} was lost")
            return
        self._received, self._waiting = number, self._waiting + size
        if number - self._taken > WINDOW_ITEMS or self._waiting - self._size - size > WINDOW_BYTES:
            self.broken(f"{self._label} sends more than its window")
            return
        self.put((typed, value), size)

    def end(self, items: int) -> None:
        if items == self._received:
            self._forget()
            self.finish(None)
        else:
            self.broken(f"the last {items - self._received} items of {self._label} were lost")

    def fail(self, fault: RuntimeFault) -> None:
        self._forget()
        self.finish(fault)

    def broken(self, why: str) -> None:
        """Break the stream: an item cannot be given, so nothing after it can."""
        self._left()
        self.finish(DecodeError(why))

    def _on_credit(self, items: int, size: int) -> None:
        if items - self._credited_items >= WINDOW_ITEMS // 2 or size - self._credited_bytes >= WINDOW_BYTES // 2:
            self.renew()

    def renew(self) -> None:
        """Tell the producer how far this end has read; also that it is still there."""
        self._credited_items, self._credited_bytes = self._taken, self._size
        with contextlib.suppress(PeerGone, QueueFull):  # totals: the next one says it again
            self._sender.send(self._peer, pack([envelope.CREDIT, self._number, self._taken, self._size]), [])

    def _left(self) -> None:
        self._forget()
        self._sender.cancel(self._peer, self._number)

    def _forget(self) -> None:
        self._peer.streams.pop(self._number, None)


class RemoteOutlet:
    """The consumer is on a peer."""

    def __init__(self, sender: PeerSender, peer: Peer, number: int, window: Window) -> None:
        self.window = window
        self.unread = 0  # heartbeats since the consumer last said how far it has read
        self._sender = sender
        self._peer = peer
        self._number = number

    async def item(self, endpoint: ActorEndpoint, value: Any) -> None:
        sink = Sink()
        data = encode(value, sink)
        body = pack([envelope.ITEM, self._number, self.window.sent + 1, sink.typed, data])
        self.window.send(size_of(body, sink.buffers))
        while True:
            try:
                self._sender.send(self._peer, body, sink.buffers)
            except MessageTooLarge as error:
                raise EncodeError(str(error)) from error
            except PeerGone:  # the node's end cancels this
                return
            except QueueFull:
                await self._sender.pause()
            else:
                return

    def returned(self, endpoint: ActorEndpoint, value: Any) -> None:
        self._sender.reply(self._peer, self._number, [envelope.END, self._number, self.window.sent], [])

    def failed(self, fault: RuntimeFault) -> None:
        self._sender.reply(self._peer, self._number, [envelope.FAULT, self._number, *fault_to_wire(fault)], [])


class RemoteStreams:
    """See the module. ``admit`` checks a request from a peer and answers a bad one itself."""

    def __init__(self, clock: Clock, sender: PeerSender, requests: Requests, admit: Callable[..., Admitted | None]) -> None:
        self._clock = clock
        self._sender = sender
        self._requests = requests
        self._admit = admit

    def open(
        self,
        to: Peer | ActorInstance,
        target: Address,
        endpoint: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        patience: float,
        returns: Any,
    ) -> Inlet:
        """Ask for the stream. Raises a RuntimeFault."""
        label, clock = f"{target}.{endpoint}", self._clock
        left = self._requests.left(patience, label)
        trace, whole = self._requests.span(target, endpoint, "stream"), inherited_deadline()
        if isinstance(to, ActorInstance):
            declared = to.declared(endpoint, stream=True)
            outlet = LocalOutlet(label, clock)
            start_by = clock.now() + left
            delivery = Delivery(declared, args, kwargs, outlet, deadline=whole, trace=trace, start_by=start_by)
            outlet.cancel = delivery.cancel
            to.deliver(delivery)
            return outlet.inlet
        number, sink = self._requests.number(), Sink()
        whole_left = 0.0 if whole is None else max(whole - clock.now(), left)  # time has passed; 0 would mean without end
        window = [WINDOW_ITEMS, WINDOW_BYTES]
        message = [
            envelope.OPEN,
            number,
            target.key,
            endpoint,
            left,
            whole_left,
            trace,
            encode(args, sink),
            encode(kwargs, sink),
        ]
        inlet = RemoteInlet(self._sender, clock, to, number, target, endpoint, returns)
        self._sender.ask(to, [*message, *window], sink.buffers)
        to.streams[number] = inlet
        return inlet

    def on_open(
        self,
        peer: Peer,
        number: int,
        actor: str,
        endpoint: str,
        left: float,
        whole: float,
        trace: bytes,
        args: list[Any],
        kwargs: dict[str, Any],
        items: int,
        size: int,
    ) -> None:
        found = self._admit(peer, number, actor, endpoint, left, args, kwargs, stream=True)
        if found is None:
            return
        instance, declared, given = found
        if not (items > 0 and size > 0 and whole >= 0):
            raise DecodeError(f"a window of {items} items and {size} bytes for {whole} s")
        window = Window(min(items, MOST_ITEMS), min(size, MOST_BYTES))
        outlet = RemoteOutlet(self._sender, peer, number, window)
        now = self._clock.now()
        delivery = Delivery(
            declared, *given, outlet, deadline=now + whole if whole else None, trace=trace, start_by=now + left
        )
        peer.inbound[number] = delivery
        instance.deliver(delivery)

    def on_item(self, peer: Peer, size: int, number: int, place: int, typed: bool, value: Any) -> None:
        if (inlet := peer.streams.get(number)) is not None:  # else closed meanwhile: what was on its way is dropped
            inlet.receive(place, typed, value, size)

    def on_credit(self, peer: Peer, number: int, items: int, size: int) -> None:
        delivery = peer.inbound.get(number)
        if delivery is not None and isinstance(delivery.reply_to, RemoteOutlet):
            delivery.reply_to.unread = 0
            delivery.reply_to.window.taken(items, size)

    def on_end(self, peer: Peer, number: int, items: int) -> None:
        if (inlet := peer.streams.get(number)) is not None:
            inlet.end(items)


def size_of(body: Buffer, buffers: Sequence[Buffer]) -> int:
    """Return the bytes that one message counts for in a window."""
    return len(body) + sum(map(len, buffers))
