"""Sending to peers: one way out for calls, replies, streams and system messages.

Owns the choice of how a body leaves (over the transport, with large buffers in shared memory where both ends can, or back to
this node itself), the error of a caller when the transport refuses, and the retries of what must arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ...transport.address import PeerId
from ...transport.clock import Clock
from ...transport.errors import MessageTooLarge, PeerGone, QueueFull
from ...transport.handshake import SPOKEN
from ...transport.interface import Transport
from ...transport.link_table import LinkTable
from ...transport.wire import Buffer
from ..base import envelope
from ..base.codec import pack
from ..base.dead_letters import DeadLetters
from ..base.errors import EncodeError, MailboxFull, NodeDown, fault_to_wire
from .peers import Peer

RETRY = 0.02  # seconds until what must be sent is offered again to a connection that takes no more
OnMessage = Callable[[PeerId, Buffer, list[memoryview]], None]


class PeerSender:
    """See the module.

    itself: this node as its own peer, whose messages ``loopback`` gets. transport, tensor_links: none where the node does
    not listen. listens: whether this node listens to the heartbeats of others.
    """

    def __init__(
        self,
        itself: Peer,
        loopback: OnMessage,
        transport: Transport | None,
        tensor_links: LinkTable | None,
        clock: Clock,
        dead: DeadLetters,
        listens: Callable[[], bool],
    ) -> None:
        self._itself = itself
        self._loopback = loopback
        self._transport = transport
        self._links = tensor_links
        self._clock, self._dead = clock, dead
        self._listens = listens
        self._loop = asyncio.get_running_loop()

    def send(self, peer: Peer, body: bytes, buffers: list[Buffer]) -> None:
        """Send a message. Raises the transport's errors."""
        if peer is self._itself:
            views = [memoryview(bytes(buffer)) for buffer in buffers]  # frozen: what the sender changes now is not seen
            self._loop.call_soon(self._loopback, peer.id, body, views)
            return
        if peer.lost or self._transport is None:
            raise PeerGone(f"node {peer.id} is not connected")
        if not peer.met:
            self.meet(peer)
        peer.unused = 0
        if buffers and self._links is not None and (placed := self._links.place(peer.id, buffers)) is not None:
            self._transport.send(peer.id, body, placed.frames, placed.places)
            self._links.lend(peer.id, placed)
        else:
            self._transport.send(peer.id, body, buffers)

    def newer(self, peer: Peer) -> bool:
        """Return True if the peer is of a later release, which may say more than is known here."""
        said = self._transport.greeting(peer.id) if self._transport is not None else None
        return said is not None and said.versions.highest > SPOKEN.highest

    def meet(self, peer: Peer) -> None:
        """Tell a peer where this node listens, and exchange heartbeats with it from now on."""
        assert self._transport is not None, "a node that does not listen meets no other"
        peer.met = True
        self._transport.connect(peer.id, peer.endpoint)
        self.notify(peer, [envelope.HELLO, self._transport.endpoint, self._listens()])

    def notify(self, peer: Peer, message: list[Any]) -> None:
        """Send a system message; a peer that cannot take it is noticed by other means."""
        with contextlib.suppress(PeerGone, QueueFull):
            self.send(peer, pack(message), [])

    def ask(self, to: Peer, message: list[Any], buffers: list[Buffer]) -> None:
        """Send a request. Raises what the caller of an endpoint may see."""
        try:
            self.send(to, pack(message), buffers)
        except MessageTooLarge as error:
            raise EncodeError(str(error)) from error
        except PeerGone as error:
            raise NodeDown(f"node {to.id} is not connected: {error}") from error
        except QueueFull as error:
            raise MailboxFull(f"the way to {to.id} is full: {error}") from error

    def reply(self, peer: Peer, number: int, message: list[Any], buffers: list[Buffer]) -> None:
        """End a request of the peer's."""
        peer.inbound.pop(number, None)
        try:
            self.send(peer, pack(message), buffers)
        except (EncodeError, MessageTooLarge) as error:
            fault = fault_to_wire(EncodeError(str(error)))
            self.reply(peer, number, [envelope.FAULT, number, *fault], [])
        except (PeerGone, QueueFull) as error:
            self._dead.drop(type(error).__name__, peer.id, f"an answer to {peer.id} was dropped: {error}")

    def cancel(self, to: Peer, number: int) -> None:
        """Tell the peer that the request has no waiting caller any more, again and again while the way is full."""
        self._insist(to, pack([envelope.CANCEL, number]))

    def _insist(self, to: Peer, body: bytes) -> None:
        try:
            self.send(to, body, [])
        except PeerGone:  # its end settles everything
            pass
        except QueueFull:
            self._clock.call_at(self._clock.now() + RETRY, lambda: self._insist(to, body))

    def confirm(self, peer: Peer) -> None:
        """Tell a peer how many of its casts have come, if that is news. Called with each heartbeat."""
        if peer.casts_seen != peer.casts_reported:
            with contextlib.suppress(PeerGone, QueueFull):
                self.send(peer, pack([envelope.SEEN, peer.casts_seen]), [])
                peer.casts_reported = peer.casts_seen

    async def pause(self) -> None:
        """Until a full connection may take more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.now() + RETRY, lambda: _release(future))
        try:
            await future
        finally:
            timer.cancel()


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
