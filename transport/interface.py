"""The transport interface: the methods that a node calls (``Transport``) and the callbacks it gets (``Receiver``).

``sockets.py`` (ZeroMQ, between processes) and ``loopback.py`` (one process, for tests) implement ``Transport``.
Everything happens on one event loop. No method blocks. The receiver's methods are called from the loop, never from within
a ``send``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .address import PeerId
from .errors import ReleaseRefused
from .handshake import Admission, Greeting, ReturnRequest
from .wire import Buffer

UNREACHABLE = "unreachable"


class Receiver(Protocol):
    """The node above a transport."""

    def on_message(self, peer: PeerId, body: Buffer, buffers: list[memoryview]) -> None:
        """Receive a control message, in the order sent. ``peer`` is the identity that the sender gave."""

    def on_shared(self, peer: PeerId, body: Buffer, places: Buffer, buffers: list[memoryview]) -> None:
        """Receive a control message with buffers in the peer's shared memory, at ``places`` (see ``LinkTable``)."""

    def on_link(self, peer: PeerId, frames: list[memoryview]) -> None:
        """Receive a message of the link protocol (``link_wire.py``), in the order sent."""

    def on_link_broken(self, peer: PeerId) -> None:
        """Handle a broken link connection to ``peer``.

        Messages in flight on it may be lost; ``send_link`` makes a new connection.
        """

    def on_lost(self, peer: PeerId, cause: str) -> None:
        """Handle the loss of the connection to ``peer``. Not called after ``disconnect``. Causes:

        "disconnected..." it broke and will not come back: the process ended, or closed it
        "refused: WHY"    it was never accepted
        UNREACHABLE       it stands, but nothing answers there: host, network, or a stopped process. The connection is
                          not closed yet: the receiver decides between ``disconnect`` and ``recheck``
        """

    def on_join(self, name: str, key: str, secret: str) -> Admission:
        """Answer a node of that name that asks to be a member.

        key: the key of its connection, "" without keys. secret: from an invitation. Raises HandshakeRefused.
        """

    def on_return(self, said: ReturnRequest, key: str) -> Admission:
        """Answer a member that has lost its head. ``key``: as for ``on_join``. Raises HandshakeRefused."""

    def on_garbage(self, reason: str) -> None:
        """Note that a message that fits no layout was dropped."""


class Transport(Protocol):
    """Messages to and from peers that were connected."""

    endpoint: str
    link_kind: str  # how link traffic travels: "frames", or "reference" where nothing is copied

    def start(self, receiver: Receiver) -> None:
        """Begin to receive. Needs a running loop."""

    def know(self, peer: PeerId, endpoint: str) -> None:
        """Check the endpoint of ``peer`` and accept its connections. Raises AddressError, KeysError."""

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Make ``peer`` reachable; do nothing if it already is."""

    def admit(self, peer: PeerId, key: str) -> None:
        """Accept connections with this public key as ``peer``; do nothing without keys. Raises KeysError."""

    def invite(self, wanted: Callable[[], bool]) -> None:
        """Let unknown keys get as far as ``Receiver.on_join`` while ``wanted()`` is true."""

    def watch(self, seconds: float) -> None:
        """Report peers as UNREACHABLE from now on when their process does not answer for this many seconds."""

    def recheck(self, peer: PeerId) -> None:
        """Begin to watch ``peer`` anew, after UNREACHABLE."""

    def greeting(self, peer: PeerId) -> Greeting | None:
        """Return what ``peer`` said when it connected to this node; None where it has not, or nodes do not greet."""

    def refused(self) -> list[ReleaseRefused]:
        """Return the last nodes that were refused because their release is too far away."""

    def rest(self, peer: PeerId) -> None:
        """Close the connections to ``peer`` for heartbeats and links; the next heartbeat or link message opens another."""

    def disconnect(self, peer: PeerId, why: str = "") -> None:
        """Forget ``peer`` for good and drop the messages queued for it. ``why``: the sentence that it gets when it knocks
        again, or sends a heartbeat."""

    def part(self, peer: PeerId) -> None:
        """Close the connections to ``peer``, whose key stays, and drop what comes on its old ones."""

    def succeed(self, earlier: PeerId, later: PeerId, why: str) -> None:
        """Disconnect ``earlier``, whose key is from now on the one of ``later``; ``why``: as for ``disconnect``."""

    async def ask(self, endpoint: str, request: ReturnRequest) -> Admission:
        """Ask the head that listens at ``endpoint``, whichever it is. Raises HandshakeRefused, PeerGone."""

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = (), places: bytes = b"") -> None:
        """Queue a control message. Raises PeerGone, QueueFull, MessageTooLarge.

        The buffers must not change afterwards. ``places`` says which further buffers of the message lie in shared memory
        (``LinkTable.place``).
        """

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        """Queue a heartbeat: a control message on a connection of its own that overtakes all others.

        Raises the same errors as ``send``.
        """

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        """Queue a message of the link protocol, apart from control messages. Raises PeerGone, QueueFull."""

    def close(self) -> None:
        """Drop everything and free sockets and files. Idempotent."""
