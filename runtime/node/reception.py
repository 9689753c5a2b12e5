"""What a node does with what arrives: checks who speaks, then hands it to calls, links or the peer table.

Owns the gate (strangers and fenced incarnations are counted and dropped; garbage never raises) and the system messages.
Makes no decision of its own about who is up: it obeys the head.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright.runtime.base import envelope
from blockwright.runtime.base.codec import decode
from blockwright.runtime.base.errors import DecodeError, fault_to_wire, text_of
from blockwright.runtime.node.peers import Down, Peer
from blockwright.runtime.node.remote_streams import size_of
from blockwright.runtime.node.vitals import Vitals
from blockwright.transport.address import PeerId, check_name
from blockwright.transport.errors import AddressError, KeysError, Refused
from blockwright.transport.handshake import Admission
from blockwright.transport.interface import UNREACHABLE
from blockwright.transport.wire import Buffer, Traffic, WireError

if TYPE_CHECKING:
    from blockwright.runtime.node.node import Node

MOST_OF_STRANGERS = 4096  # bytes of a message that is looked at before its sender is known: a HELLO
OnLink = Callable[[str, bytes, list[memoryview]], None]


class Reception:
    """See the module; implements the transport's ``Receiver``."""

    def __init__(self, node: Node) -> None:
        self.links: dict[Traffic, OnLink] = {}
        self._node = node

    def on_message(self, sender: PeerId, body: Buffer, buffers: list[memoryview]) -> None:
        node = self._node
        if not node.open:
            return
        peer = node.known(sender)
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
                peer.heard = node.clock.now()
                if tag == envelope.REPLY:
                    node.calls.on_reply(peer, *fields)
                elif tag == envelope.ITEM:
                    node.calls.streams.on_item(peer, size_of(body, buffers), *fields)
                else:
                    self._on_known(peer, tag, fields)
            elif tag == envelope.HELLO:
                self._on_hello(sender, *fields)
            else:
                node.dropped["stranger"] += 1
        except (DecodeError, AddressError, KeysError) as error:
            self.on_garbage(f"from {sender}: {error}")

    def _listens_to(self, sender: PeerId, body: Buffer) -> bool:
        """Whether a message of somebody unknown is looked at."""
        if self._node.table.fenced(sender):
            self._node.dropped["fenced"] += 1
            return False
        if len(body) > MOST_OF_STRANGERS:
            self._node.dropped["stranger"] += 1
            return False
        return True

    def on_shared(self, sender: PeerId, body: Buffer, places: Buffer, buffers: list[memoryview]) -> None:
        if not self._node.open or self._is_strange(sender):
            return
        try:
            restored = self._node.tensor_links.restore(sender, places, buffers)
        except WireError as error:
            self.on_garbage(f"from {sender}: {error}")
        else:
            self.on_message(sender, body, restored)

    def on_link(self, sender: PeerId, frames: list[memoryview]) -> None:
        node = self._node
        if not node.open or (sender != node.id and self._is_strange(sender)):
            return
        try:
            node.tensor_links.on_frames(sender, frames)
        except WireError as error:
            self.on_garbage(f"from {sender}: {error}")

    def _is_strange(self, sender: PeerId) -> bool:
        """Whether it is nobody who is let in; then what it sent is counted as dropped."""
        node = self._node
        if node.known(sender) is not None:
            return False
        node.dropped["fenced" if node.table.fenced(sender) else "stranger"] += 1
        return True

    def on_link_broken(self, peer: PeerId) -> None:
        if self._node.open:
            self._node.tensor_links.on_broken(peer)

    def on_transfer(self, sender: PeerId, kind: Traffic, header: bytes, buffers: list[memoryview]) -> None:
        """A message of a link is complete."""
        if (receive := self.links.get(kind)) is None:
            text = f"node {self._node.id} got {kind.name} traffic from {sender} and has no receiver for it; see Node.on_link"
            self._node.calls.dead.drop("NoReceiver", sender, text, level=logging.ERROR)
            return
        try:
            receive(sender.name, header, buffers)
        except Exception as error:
            text = f"the receiver of {kind.name} traffic from {sender} raised {type(error).__name__}: {text_of(error)}"
            self._node.calls.dead.drop("ReceiverFailed", sender, text, level=logging.ERROR, error=error)

    def on_lost(self, lost: PeerId, cause: str) -> None:
        node = self._node
        peer = node.table.find(lost)
        if peer is None:
            return
        if node.membership is not None:
            if cause != UNREACHABLE:
                peer.lost = True
                node.fail_calls(peer, cause)
            node.membership.lost(peer, cause)
            return
        if node.head is not None and lost != node.head:
            # Who is down, and why, is the head's to say, to all alike. Until it does, calls fail.
            peer.lost = True
            node.fail_calls(peer, cause)
            if (head := node.table.find(node.head)) is not None:
                node.tell(head, [envelope.LOST, lost.name, lost.incarnation, cause])
            return
        node.declare_down(Down(lost.name, lost.incarnation, cause))
        if lost == node.head:
            node.close(f"the head {lost} is down: {cause}")

    def on_join(self, name: str, key: str, secret: str) -> Admission:
        if self._node.membership is None:
            raise Refused(f"node {self._node.id} is not the head of a cluster")
        return self._node.membership.join(name, key, secret)

    def on_garbage(self, reason: str) -> None:
        self._node.dropped["garbage"] += 1
        text = f"node {self._node.id} dropped a message: {reason}"
        self._node.calls.dead.repeats.say(logging.WARNING, "garbage", text)

    def _on_hello(self, sender: PeerId, endpoint: str) -> None:
        node = self._node
        if node.known(sender) is not None:
            return
        if node.membership is not None and not node.membership.admits(sender):
            node.dropped["stranger"] += 1
            return
        node.greet(sender, endpoint)

    def _unreadable(self, peer: Peer, body: Buffer, error: DecodeError) -> None:
        """What was said cannot be read here, only what it belongs to: whoever waits for it is told."""
        calls = self._node.calls
        if (about := envelope.outline(body)) is None or self._again(peer, *about):
            return
        tag, number = about
        if tag in (envelope.CALL, envelope.OPEN):
            calls.reply(peer, number, [envelope.FAULT, number, *fault_to_wire(error)], [])
        elif tag == envelope.CAST:
            peer.casts_seen += 1
            calls.dead.add(type(error).__name__)
        elif tag == envelope.REPLY:
            calls.on_unreadable(peer, number, error)
        elif tag == envelope.ITEM and (inlet := peer.streams.get(number)) is not None:
            inlet.broken(str(error))

    def _again(self, peer: Peer, tag: int, number: int) -> bool:
        """Whether what makes a node act comes for a second time, or late."""
        if tag not in envelope.NUMBERED:
            return False
        if number <= peer.numbered:
            self._node.dropped["duplicate"] += 1
            return True
        peer.numbered = number
        return False

    def _on_known(self, peer: Peer, tag: int, fields: list[Any]) -> None:
        calls = self._node.calls
        if tag in envelope.NUMBERED and self._again(peer, tag, fields[0]):
            return
        if tag == envelope.CALL:
            calls.on_call(peer, *fields)
        elif tag == envelope.CAST:
            calls.on_cast(peer, *fields)
        elif tag == envelope.FAULT:
            calls.on_fault(peer, *fields)
        elif tag == envelope.CANCEL:
            calls.on_cancel(peer, *fields)
        elif tag == envelope.CREDIT:
            calls.streams.on_credit(peer, *fields)
        elif tag == envelope.OPEN:
            calls.streams.on_open(peer, *fields)
        elif tag == envelope.END:
            calls.streams.on_end(peer, *fields)
        elif tag == envelope.SEEN:
            calls.on_seen(peer, *fields)
        elif tag == envelope.HEARTBEAT:
            peer.heartbeat_at = self._node.clock.now()
            peer.vitals, peer.payload = decode(Vitals, fields[0]), decode(dict[str, Any], fields[1])
            self._node.table.beat(peer)
        elif (membership := self._node.membership) is not None:
            if tag == envelope.READY:
                membership.ready(peer)
            elif tag == envelope.LOST:
                membership.accused(peer, PeerId(check_name(fields[0]), fields[1]))
            elif tag == envelope.LEAVE:
                membership.left(peer)
            else:
                raise DecodeError(f"message {tag} is not for the head")
        elif peer.id == self._node.head:
            self._on_head(tag, fields)
        else:
            raise DecodeError(f"only the head may send message {tag}")

    def _on_head(self, tag: int, fields: list[Any]) -> None:
        node = self._node
        if tag == envelope.STOP:
            node.dismissed.set()
            node.close("the head stopped it")
        elif tag == envelope.DOWN:
            name, incarnation, cause = fields
            if (name, incarnation) == node.id:
                node.close(f"the head declared it down: {cause}")
            else:
                node.declare_down(Down(name, incarnation, cause))
        else:
            for name, incarnation, endpoint in decode(list[tuple[str, int, str]], fields[0]):
                other = PeerId(check_name(name), incarnation)
                if other != node.id and node.known(other) is None and not node.table.fenced(other):
                    node.greet(other, endpoint)
