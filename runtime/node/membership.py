"""The membership interface: what a head's node asks ``cluster.ClusterHead`` about its peers.

Owns the protocol alone. A node without a membership is a worker, which obeys its head, or stands alone.
"""

from __future__ import annotations

from typing import Protocol

from blockwright.runtime.node.peers import Peer
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Admission


class Membership(Protocol):
    """The head's say in who belongs to the cluster."""

    def admits(self, peer: PeerId) -> bool:
        """Whether a node that greets is expected."""

    def ready(self, peer: Peer) -> None:
        """Its entry function has returned."""

    def lost(self, peer: Peer, cause: str) -> None:
        """The way to it broke, or nothing answers there (``transport.interface``)."""

    def accused(self, reporter: Peer, peer: PeerId) -> None:
        """Another node cannot reach it."""

    def join(self, name: str, key: str, secret: str) -> Admission:
        """A node that was not launched asks to be a member; with the secret of an invitation where it came with a key.
        Raises HandshakeRefused."""

    def left(self, peer: Peer) -> None:
        """A node that joined has stopped in order."""
