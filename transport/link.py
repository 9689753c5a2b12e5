"""Tensors between workers: an ordered one-way link to one peer, apart from mailbox traffic.

Owns the sender's end. A link belongs to one incarnation of the receiver; when that is gone, sending raises and a new link
is asked of the node. Classes are carried with each message; cutting lower classes into chunks is a later concern of this
module and of a pure policy, not of callers. Never looks at headers or buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.transport.address import PeerId
from blockwright.transport.interface import Transport
from blockwright.transport.wire import Buffer, Traffic

__all__ = ["Link", "Traffic"]


class Link:
    """The sender's end."""

    def __init__(self, transport: Transport, peer: PeerId) -> None:
        self.peer = peer
        self._transport = transport

    def send(self, kind: Traffic, header: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Queue one message; it arrives after all that were sent on this link before, or the peer is lost.

        ``buffers`` are contiguous bytes (at most 256 MiB each) that must not change afterwards: they are not copied.
        Raises PeerGone, QueueFull, MessageTooLarge.
        """
        self._transport.send_link(self.peer, kind, header, buffers)
