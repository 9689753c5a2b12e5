"""What a transport offers a node and what it tells it: the seam between ``runtime`` and sockets.

``sockets.py`` (ZeroMQ, between processes) and ``loopback.py`` (one process, for tests) implement ``Transport``. Everything
happens on one event loop: no method blocks, and the receiver's methods are called from the loop, never from within a
``send``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Admission
from blockwright.transport.wire import Buffer

UNREACHABLE = "unreachable"


class Receiver(Protocol):
    """The node above a transport."""

    def on_message(self, peer: PeerId, body: Buffer, buffers: list[memoryview]) -> None:
        """A control message, in the order sent. ``peer`` is what the sender called itself."""

    def on_shared(self, peer: PeerId, body: Buffer, places: Buffer, buffers: list[memoryview]) -> None:
        """A control message of which some buffers lie in the peer's shared memory, as ``places`` says (``LinkTable``)."""

    def on_link(self, peer: PeerId, frames: list[memoryview]) -> None:
        """A message of the link protocol (``link_wire.py``), in the order sent."""

    def on_link_broken(self, peer: PeerId) -> None:
        """The way of link traffic to ``peer`` broke, and what was on it may be lost; ``send_link`` makes a new one."""

    def on_lost(self, peer: PeerId, cause: str) -> None:
        """The connection to ``peer`` is no more. Not called after ``disconnect``. Causes:

        "disconnected..." it broke and will not come back: the process ended, or closed it
        "refused: WHY"    it was never let in
        UNREACHABLE       it stands, but nothing answers there: host, network, or a stopped process. The way is not
                          closed yet: the receiver decides between ``disconnect`` and ``recheck``
        """

    def on_join(self, name: str, key: str, secret: str) -> Admission:
        """A node of that name asks to be a member. key: of its connection, "" where there are none; secret: of an
        invitation. Raises Refused."""

    def on_garbage(self, reason: str) -> None:
        """A message that fits no layout was dropped."""


class Transport(Protocol):
    """Messages to and from peers that were connected."""

    endpoint: str
    link_kind: str  # how link traffic travels: "frames", or "reference" where nothing is copied

    def start(self, receiver: Receiver) -> None:
        """Begin to receive. Needs a running loop."""

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Make ``peer`` reachable; does nothing when it is."""

    def admit(self, peer: PeerId, key: str) -> None:
        """Let in who has this public key, as ``peer``; nothing where there are no keys. Raises KeysError."""

    def invite(self, wanted: Callable[[], bool]) -> None:
        """While this is true, unknown keys may come as far as ``Receiver.on_join``."""

    def watch(self, seconds: float) -> None:
        """From here on, peers whose process does not answer for so long are reported as UNREACHABLE."""

    def recheck(self, peer: PeerId) -> None:
        """After UNREACHABLE: begin to watch ``peer`` anew."""

    def disconnect(self, peer: PeerId) -> None:
        """Forget ``peer``; what is queued for it is dropped."""

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = (), places: bytes = b"") -> None:
        """Queue a control message. Raises PeerGone, QueueFull, MessageTooLarge; buffers must not change afterwards.

        ``places``: some more of its buffers lie in shared memory, and which (``LinkTable.place``).
        """

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        """Queue a control message on a way of its own, past all others: a heartbeat. Raises as ``send``."""

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        """Queue a message of the link protocol, apart from control messages. Raises PeerGone, QueueFull."""

    def close(self) -> None:
        """Drop everything and free sockets and files. Idempotent."""
