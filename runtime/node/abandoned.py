"""Abandoned calls and streams: work for a peer without a waiting caller, though the CANCEL for it never arrived.

No peer confirms a CANCEL. So the callee looks at its calls with each heartbeat and ends those whose deadline is past; the
caller's side has counted the same seconds. Streams have no deadline: their consumer says with each heartbeat how far it has
read (which also makes up for a lost CREDIT), and a stream without a reader is ended.
"""

from __future__ import annotations

from ..actor.instance import Delivery
from ..base.errors import DeadlineExceeded
from .peers import Peer
from .remote_streams import RemoteOutlet

UNREAD = 20  # heartbeats of ours (a loop that stands still makes none) without a word of a stream's consumer


def end_abandoned(peer: Peer, now: float) -> int:
    """End the work for this peer that is overdue; how many messages. To be called with each heartbeat."""
    overdue = [(number, delivery) for number, delivery in peer.inbound.items() if _overdue(delivery, now)]
    for number, delivery in overdue:
        if isinstance(delivery.reply_to, RemoteOutlet):
            delivery.reply_to.failed(DeadlineExceeded(f"stream {delivery.endpoint.name} was not read"))
        peer.inbound.pop(number, None)
        delivery.cancel()
    return len(overdue)


def _overdue(delivery: Delivery, now: float) -> bool:
    if delivery.deadline is not None and now >= delivery.deadline:
        return True
    if not isinstance(delivery.reply_to, RemoteOutlet):
        return False
    delivery.reply_to.unread += 1
    return delivery.reply_to.unread > UNREAD
