"""The head's doubts: why it takes no member for down while it reaches few of them. Gateways hear of them, for their probes.

They are part of the head's heartbeats, so a gateway that the head does not reach has heard of none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .supervision_tree import HEAD

if TYPE_CHECKING:
    from ..runtime.actor.actor import ActorNode
    from ..runtime.cluster.cluster import ClusterHead

DOUBTS = "doubts"


def tell_doubts(cluster: ClusterHead) -> None:
    """Add the doubts to the head's heartbeats from now on."""
    beat = cluster.node.heartbeat
    cluster.node.heartbeat = lambda: beat() | ({DOUBTS: said} if (said := cluster.doubts) else {})


def head_doubts(node: ActorNode) -> str:
    """Return what the head's last heartbeat said to this node; on the head's own node what its next one will say."""
    peer = node.peers().get(HEAD)
    said: str = (peer.payload if peer is not None else node.heartbeat()).get(DOUBTS, "")
    return said
