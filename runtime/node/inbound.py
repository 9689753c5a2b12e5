"""Inbound messages: checks the sender, then dispatches to calls, streams, links or peering.

Owns the gate (strangers and fenced incarnations are counted and dropped; garbage never raises), the dropping of duplicates,
and the reply to unreadable requests. Makes no decision of its own.
"""

from __future__ import annotations

import logging
from typing import Any

from ...transport.address import PeerId
from ...transport.errors import AddressError, KeysError
from ...transport.wire import Buffer, WireError
from ..base import envelope
from ..base.dead_letters import DeadLetters
from ..base.decoding import decoder
from ..base.errors import DecodeError, fault_to_wire
from .heartbeat import Heartbeat
from .incoming_calls import IncomingCalls
from .peer_access import PeerAccess
from .peering import Peering
from .peers import Peer
from .remote_streams import RemoteStreams, size_of

_heartbeat, _payload = decoder(Heartbeat), decoder(dict[str, Any])  # a head of a thousand reads two thousand a second
MOST_OF_STRANGERS = 4096  # bytes of a message that is looked at before its sender is known: a HELLO


class Inbound:
    """See the module; implements the transport's ``Receiver``."""

    def __init__(
        self,
        access: PeerAccess,
        incoming: IncomingCalls,
        streams: RemoteStreams,
        peering: Peering,
        dead: DeadLetters,
    ) -> None:
        self.open = False  # messages are let in
        self._node = access.node
        self._clock = access.clock
        self._table = access.table
        self._resolver = access.resolver
        self._sender, self._remote = access.sender, access.remote
        self._incoming, self._streams = incoming, streams
        self._links, self._peering = access.tensor_links, peering
        self._dead, self._dropped = dead, access.dropped
        self.on_lost = peering.on_lost
        self.on_join, self.on_return = peering.on_join, peering.on_return

    def on_message(self, sender: PeerId, body: Buffer, buffers: list[memoryview]) -> None:
        if not self.open:
            return
        peer = self._resolver.known(sender)
        if peer is None and not self._listens_to(sender, body):
            return
        try:
            tag, fields = envelope.parse(body, buffers)
        except DecodeError as error:
            self.on_garbage(f"from {sender}: {error}")
            if peer is not None:
                self._unreadable(peer, body, error)
            return
        try:
            if peer is not None and tag != envelope.HELLO:
                peer.heard = self._clock.now()
                if tag != envelope.HEARTBEAT:
                    peer.unused = 0
                if tag == envelope.REPLY:
                    self._remote.on_reply(peer, *fields)
                elif tag == envelope.ITEM:
                    self._streams.on_item(peer, size_of(body, buffers), *fields)
                else:
                    self._on_known(peer, tag, fields)
            elif tag == envelope.HELLO:
                self._peering.on_hello(sender, *fields)
            else:
                self._dropped["stranger"] += 1
        except (DecodeError, AddressError, KeysError) as error:
            self.on_garbage(f"from {sender}: {error}")

    def _listens_to(self, sender: PeerId, body: Buffer) -> bool:
        """Return True if a message of an unknown sender is read."""
        if self._table.fenced(sender):
            self._dropped["fenced"] += 1
            return False
        if len(body) > MOST_OF_STRANGERS:
            self._dropped["stranger"] += 1
            return False
        return True

    def on_shared(self, sender: PeerId, body: Buffer, places: Buffer, buffers: list[memoryview]) -> None:
        if not self.open or self._links is None or self._is_strange(sender):
            return
        try:
            restored = self._links.restore(sender, places, buffers)
        except WireError as error:
            self.on_garbage(f"from {sender}: {error}")
        else:
            self.on_message(sender, body, restored)

    def on_link(self, sender: PeerId, frames: list[memoryview]) -> None:
        if not self.open or self._links is None or (sender != self._node and self._is_strange(sender)):
            return
        if (peer := self._table.find(sender)) is not None:
            peer.unused = 0
            if not peer.met and not peer.lost:  # its greeting comes on another connection
                self._sender.meet(peer)
        try:
            self._links.on_frames(sender, frames)
        except WireError as error:
            self.on_garbage(f"from {sender}: {error}")

    def on_link_broken(self, peer: PeerId) -> None:
        if self.open and self._links is not None:
            self._links.on_broken(peer)

    def on_garbage(self, reason: str) -> None:
        self._dropped["garbage"] += 1
        self._dead.repeats.say(logging.WARNING, "garbage", f"node {self._node} dropped a message: {reason}")

    def _is_strange(self, sender: PeerId) -> bool:
        """Return True if the sender is not admitted; its message is then counted as dropped."""
        if self._resolver.known(sender) is not None:
            return False
        self._dropped["fenced" if self._table.fenced(sender) else "stranger"] += 1
        return True

    def _unreadable(self, peer: Peer, body: Buffer, error: DecodeError) -> None:
        """Answer a message of which only tag and id can be read: the waiting caller gets a fault."""
        if (about := envelope.outline(body)) is None or self._again(peer, *about):
            return
        tag, number = about
        if tag in (envelope.CALL, envelope.OPEN):
            self._sender.reply(peer, number, [envelope.FAULT, number, *fault_to_wire(error)], [])
        elif tag == envelope.CAST:
            peer.casts_seen += 1
            self._dead.add(type(error).__name__)
        elif tag == envelope.REPLY:
            self._remote.on_unreadable(peer, number, error)
        elif tag == envelope.ITEM and (reader := peer.streams.get(number)) is not None:
            reader.broken(str(error))

    def _again(self, peer: Peer, tag: int, number: int) -> bool:
        """Return True if a message that makes a node act comes for a second time, or late."""
        if tag not in envelope.NUMBERED:
            return False
        if number <= peer.numbered:
            self._dropped["duplicate"] += 1
            return True
        peer.numbered = number
        return False

    def _on_known(self, peer: Peer, tag: int, fields: list[Any]) -> None:
        if tag in envelope.NUMBERED and self._again(peer, tag, fields[0]):
            return
        if tag == envelope.CALL:
            self._incoming.on_call(peer, *fields)
        elif tag == envelope.CAST:
            self._incoming.on_cast(peer, *fields)
        elif tag == envelope.FAULT:
            self._remote.on_fault(peer, *fields)
        elif tag == envelope.CANCEL:
            self._incoming.on_cancel(peer, *fields)
        elif tag == envelope.CREDIT:
            self._streams.on_credit(peer, *fields)
        elif tag == envelope.OPEN:
            self._streams.on_open(peer, *fields)
        elif tag == envelope.END:
            self._streams.on_end(peer, *fields)
        elif tag == envelope.SEEN:
            self._remote.on_seen(peer, *fields)
        elif tag == envelope.HEARTBEAT:
            peer.heartbeat_at = self._clock.now()
            peer.heartbeat, peer.payload = _heartbeat(fields[0]), _payload(fields[1])
            self._table.beat(peer)
        else:
            self._peering.on_system(peer, tag, fields)
