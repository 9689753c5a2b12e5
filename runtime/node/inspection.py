"""Inspecting a node: what its actors, mailboxes and peers do right now.

Changes nothing. ``node.inspect()`` here, the node service's ``inspect`` from other nodes; the records are in
``base/node_view.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import Protocol

from ..actor.instance import ActorInstance, Delivery
from ..base.address import Address
from ..base.node_view import ActorView, LaneView, NodeView, PeerView
from .peers import Peer


class Observer(Protocol):
    """A node that can be asked for views of the others."""

    def peers(self) -> Mapping[str, object]: ...

    def inspect_peer(self, name: str) -> Awaitable[NodeView]: ...


async def inspect_peers(node: Observer) -> list[NodeView]:
    """Return the state of every other node that is up, by name. A node that does not answer is left out."""
    views = await asyncio.gather(*[node.inspect_peer(name) for name in sorted(node.peers())], return_exceptions=True)
    return [view for view in views if isinstance(view, NodeView)]


def inspect_peer(peer: Peer, now: float, link: str) -> PeerView:
    """Return the state of a peer. ``link``: the way that tensors travel to it."""
    return PeerView(
        peer.id.name,
        peer.incarnation,
        now - peer.heard,
        peer.heartbeat.lag,
        len(peer.pending),
        len(peer.inbound),
        len(peer.streams),
        peer.casts_sent - peer.casts_confirmed,
        peer.lost,
        link,
    )


def inspect_actor(instance: ActorInstance, owner: Address | None, now: float) -> ActorView:
    current = instance.current
    return ActorView(
        instance.name,
        type(instance.actor).__name__,
        instance.life,
        instance.restarts,
        _lane(instance.mailbox.normal, now),
        _lane(instance.mailbox.urgent, now),
        current.endpoint.name if current is not None else "",
        now - current.since if current is not None else 0.0,
        len(instance.beside),
        sum(delivery.endpoint.stream for delivery in instance.beside),
        instance.handled,
        instance.failed,
        instance.over,
        f"{owner.node}/{owner.name}" if owner is not None else "",
        instance.actor.missing(),
    )


def _lane(lane: deque[Delivery], now: float) -> LaneView:
    return LaneView(len(lane), now - lane[0].since) if lane else LaneView()
