"""Address resolution: from an actor's address to its instance in this process, or to the peer that runs it."""

from __future__ import annotations

from collections.abc import Callable

from ...transport.address import PeerId
from ..actor.instance import ActorInstance
from ..base.address import Address
from ..base.errors import NodeDown
from .peers import Peer, PeerTable


class AddressResolver:
    """The resolver of one node.

    Args:
        find: returns an actor's instance on this node by key. Raises NoSuchActor or ActorDied.
        itself: this node as a peer, if it talks to its own actors by message (``encode_local``).
    """

    def __init__(self, node: PeerId, table: PeerTable, find: Callable[[str], ActorInstance], itself: Peer | None) -> None:
        self._node = node
        self._table = table
        self._find = find
        self._itself = itself
        self.seek: Callable[[str], None] = lambda node: None  # called with a node that is wanted and not known

    def resolve(self, target: Address) -> Peer | ActorInstance:
        """Return an actor's instance, or the peer that runs it. Raises NodeDown, NoSuchActor, ActorDied."""
        if target.node == self._node.name:
            if target.incarnation not in (0, self._node.incarnation):
                raise NodeDown(f"{target} is gone; node {self._node.name} is in incarnation {self._node.incarnation}")
            return self._itself or self._find(target.key)
        peer = self._table.current.get(target.node)
        if peer is None:
            self.seek(target.node)
        if peer is None or peer.lost or (target.incarnation and target.incarnation != peer.id.incarnation):
            raise NodeDown(self._table.why_down(target.node, target.incarnation))
        return peer

    def current_incarnation(self, node: str) -> int:
        """Return the node's incarnation; 0 when it is not up."""
        if node == self._node.name:
            return self._node.incarnation
        peer = self._table.current.get(node)
        return peer.incarnation if peer is not None else 0

    def seen(self, node: str) -> bool:
        """Return True if that node is or was up; otherwise its name may be a typing mistake."""
        return node == self._node.name or node in self._table.current or node in self._table.last_down

    def known(self, peer: PeerId) -> Peer | None:
        """Return the peer if this is its current life; this node itself where it talks to itself by message."""
        return self._itself if self._itself is not None and peer == self._node else self._table.find(peer)
