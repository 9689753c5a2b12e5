"""The membership interface: what a head's node asks ``cluster.ClusterHead`` about its peers.

Owns the protocol alone. A node without a membership is a worker, which obeys its head, or stands alone.
"""

from __future__ import annotations

from typing import Protocol

from ...transport.address import PeerId
from ...transport.handshake import Admission, ReturnRequest
from .peers import Peer


class Membership(Protocol):
    """The head's say in who belongs to the cluster."""

    def admits(self, peer: PeerId) -> bool:
        """Return True if a node that greets is expected."""

    def ready(self, peer: Peer) -> None:
        """Note that the node's entry function has returned."""

    def lost(self, peer: Peer, cause: str) -> None:
        """Note that the connection to a node broke, or that nothing answers there (``transport.interface``)."""

    def accused(self, reporter: Peer, peer: PeerId) -> None:
        """Another node cannot reach it."""

    def join(self, name: str, key: str, secret: str) -> Admission:
        """Answer a node that was not launched and asks to be a member, with an invitation's secret if it has a key.
        Raises HandshakeRefused.
        """

    def returned(self, said: ReturnRequest, key: str) -> Admission:
        """Answer a member of this head, or of an earlier one, that has lost it and looks for a head. Raises
        HandshakeRefused.
        """

    def told(self, peer: Peer, nodes: list[tuple[str, int, bool]]) -> None:
        """Learn which nodes a member that came back knows: name, highest incarnation, whether it takes it for up."""

    def sought(self, peer: Peer, name: str) -> None:
        """Tell a node where another one is, if that is up."""

    def healed(self, peer: Peer, other: PeerId) -> None:
        """Note that a member reaches another one again from which it was cut off."""

    def left(self, peer: Peer) -> None:
        """Note that a node that joined has stopped in order."""
