"""What a transport offers a node and what it tells it: the seam between ``runtime`` and sockets.

``sockets.py`` (ZeroMQ, between processes) and ``loopback.py`` (one process, for tests) implement ``Transport``. Everything
happens on one event loop: no method blocks, and the receiver's methods are called from the loop, never from within a
``send``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from blockwright.transport.address import PeerId
from blockwright.transport.wire import Buffer, Traffic


class Receiver(Protocol):
    """The node above a transport."""

    def on_message(self, peer: PeerId, body: Buffer, buffers: list[memoryview]) -> None:
        """A control message, in the order sent. ``peer`` is what the sender called itself."""

    def on_link(self, peer: PeerId, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        """Link traffic, in the order sent on that link."""

    def on_lost(self, peer: PeerId) -> None:
        """The connection to ``peer`` broke and will not come back. Not called after ``disconnect``."""

    def on_garbage(self, reason: str) -> None:
        """A message that fits no layout was dropped."""


class Transport(Protocol):
    """Messages to and from peers that were connected."""

    endpoint: str

    def start(self, receiver: Receiver) -> None:
        """Begin to receive. Needs a running loop."""

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Make ``peer`` reachable; does nothing when it is."""

    def disconnect(self, peer: PeerId) -> None:
        """Forget ``peer``; what is queued for it is dropped."""

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Queue a control message. Raises PeerGone, QueueFull, MessageTooLarge; buffers must not change afterwards."""

    def send_link(self, peer: PeerId, kind: Traffic, header: bytes, buffers: Sequence[Buffer]) -> None:
        """Queue link traffic, apart from control messages. Raises as ``send``."""

    def close(self) -> None:
        """Drop everything and free sockets and files. Idempotent."""
