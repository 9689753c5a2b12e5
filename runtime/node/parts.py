"""The parts of a started node and how they are wired: each gets exactly the collaborators that it uses.

From the bottom: actors of this process, routing and sending, calls and streams (both ends), monitors, links and the
registry, spawning, peers, and what receives messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...transport.address import PeerId
from ...transport.clock import Clock
from ...transport.interface import Transport
from ...transport.link_table import LinkTable
from ...transport.wire import Traffic
from ..actor.actor import ActorNode, OnLink
from ..base.dead_letters import DeadLetters
from ..base.errors import NodeDown
from ..base.node_view import NodeView
from ..tracing.message_log import MessageLog
from .address_resolver import AddressResolver
from .calls import Calls
from .heartbeat_sender import HeartbeatSender
from .inbound import Inbound
from .incoming_calls import IncomingCalls
from .inspection import inspect_actor, inspect_peer
from .lifecycle import LocalActors
from .link_receivers import LinkReceivers
from .links import Links
from .membership import Membership
from .monitors import Monitors
from .peer_access import PeerAccess
from .peering import Peering
from .peers import Peer, PeerTable
from .registry import Registry, RegistryClient
from .remote_calls import RemoteCalls
from .remote_streams import RemoteStreams
from .requests import Requests
from .sender import PeerSender
from .service import NodeService
from .spawning import Spawner


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node that exists before it starts and after it stops.

    dismissed: set when the head has ordered this node to stop.
    """

    table: PeerTable
    receivers: dict[Traffic, OnLink]
    dropped: Counter[str]  # messages not let in, by cause
    dismissed: asyncio.Event


class NodeParts:
    """See the module; the arguments are ``Node``'s. Made on the node's event loop."""

    def __init__(
        self,
        node: ActorNode,
        state: NodeState,
        clock: Clock,
        transport: Transport | None,
        membership: Membership | None,
        message_log: MessageLog | None,
        ended: Callable[[str], None],
        payload: Callable[[], dict[str, Any]],
        *,
        encode_local: bool,
        heartbeat_interval: float,
    ) -> None:
        me: PeerId = node.id
        self.table = table = state.table
        self.dropped = state.dropped
        self.clock = clock
        self.transport, self.message_log = transport, message_log
        self.dead = dead = DeadLetters(clock)
        self.itself = Peer(me, "", clock.now(), itself=True)
        self.actors = LocalActors(me, clock, message_log)
        resolver = AddressResolver(me, table, self.actors.find, self.itself if encode_local else None)
        self.tensor_links: LinkTable | None = None
        if transport is not None:
            self.tensor_links = LinkTable(me, transport, clock, LinkReceivers(me, state.receivers, dead).on_transfer)
        self.sender = sender = PeerSender(
            self.itself, self._on_own, transport, self.tensor_links, clock, dead, lambda: bool(table.heartbeats)
        )
        requests = Requests(clock, message_log)
        incoming = IncomingCalls(clock, sender, self.actors.find, dead)
        streams = RemoteStreams(clock, sender, requests, incoming.admit)
        self.remote = RemoteCalls(sender, requests, dead)
        self.calls = Calls(clock, resolver, requests, self.remote, streams, dead)
        self.monitors = Monitors(me, clock, table, self.actors, self.calls)
        self.links = Links(me.name, self.actors, self.monitors, lambda node: self.peering.outlives(node))
        self.registry = Registry(clock, self.monitors)
        self.names = RegistryClient(self.calls, lambda: self.peering.head.name if self.peering.head else me.name)
        self.spawner = Spawner(node, self.actors, self.links, self.calls)
        access = PeerAccess(me, clock, table, resolver, sender, self.remote, self.tensor_links, self.dropped)
        self.peering = Peering(access, transport, membership, state.dismissed, ended, self.links.renew)
        self.peering.follower.on_adopted.append(lambda epoch: self.names.renew())
        self.inbound = Inbound(access, incoming, streams, self.peering, dead)
        instances = self.actors.instances
        self.heartbeats = HeartbeatSender(
            clock, heartbeat_interval, table, instances, transport, sender, payload, self.peering.rest
        )
        self._id = me

    def service(self) -> NodeService:
        """Return the actor that serves other nodes."""
        return NodeService(self.actors, self.spawner, self.monitors, self.links, self.registry, self.view)

    def view(self) -> NodeView:
        """Return the current state of actors, mailboxes and peers."""
        now, links = self.clock.now(), self.tensor_links
        peers = [
            inspect_peer(peer, now, links.kind(peer.id) if links is not None else "") for peer in self.table.current.values()
        ]
        actors = [inspect_actor(life.instance, life.owner, now) for life in self.actors.current.values()]
        counts = dict(self.dead.counts), dict(self.dropped)
        return NodeView(self._id.name, self._id.incarnation, self.heartbeats.lag, actors, peers, *counts)

    def fail_all(self, fault: NodeDown) -> None:
        """End all calls, send no heartbeat any more and finish the logs, because this node stops."""
        self.heartbeats.stop()
        self.peering.follower.close()
        self.peering.cuts.close()
        for peer in [*self.table.current.values(), self.itself]:
            self.remote.abandon(peer, fault, wanted=True)
        self.calls.close()
        self.names.close()
        self.dead.repeats.close()
        if self.message_log is not None:
            self.message_log.close()

    def _on_own(self, sender: PeerId, body: Any, buffers: list[memoryview]) -> None:
        self.inbound.on_message(sender, body, buffers)
