"""Peers of a node: how they meet, how a lost connection is reported, and what follows when one is declared down.

A worker obeys its head, which alone decides who is down, and why, for all alike; a node without a head or membership only
knows that a connection broke. The head's decisions are ``cluster.ClusterHead``'s, behind ``Membership``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ...transport.address import PeerId, check_name
from ...transport.errors import ExpectedRefusal, HandshakeRefused
from ...transport.handshake import Admission, ReturnRequest, obeys
from ...transport.interface import UNREACHABLE, Transport
from ..base import envelope
from ..base.decoding import decode
from ..base.down import Down
from ..base.errors import DecodeError, NodeDown
from .cuts import Cuts
from .head_follower import HeadFollower, MemberTerms
from .membership import Membership
from .peer_access import PeerAccess
from .peers import Peer

PAGE = 512  # lives in a message about all that a node knows
SEEK_AGAIN = 0.5  # seconds until the head is asked again where the same node is
CUT_OFF = 2.5  # times `silence` without an answer to pings: a busy machine is late


class Peering:
    """See the module.

    transport: none where the node does not listen. dismissed: set when the head has ordered this node to stop.
    ended: called with the reason when the node is to be stopped. claimed: called when the actor that stands for this node at
    the head lives again.
    """

    def __init__(
        self,
        access: PeerAccess,
        transport: Transport | None,
        membership: Membership | None,
        dismissed: asyncio.Event,
        ended: Callable[[str], None],
        claimed: Callable[[], None],
    ) -> None:
        self._node = access.node
        self._clock = access.clock
        self._table = access.table
        self._resolver = access.resolver
        self._remote = access.remote
        self._transport, self._links = transport, access.tensor_links
        self._membership = membership
        self._dropped = access.dropped
        self._dismissed, self._ended = dismissed, ended
        self._claimed = claimed
        self._parted: set[PeerId] = set()  # members that come back, and have to greet anew
        self._accused: set[PeerId] = set()  # peers of which this head knows that they were lost, until they greet
        self.cuts = Cuts(access.node, access.clock, transport, lambda: self.follower.silence, self._healed)
        self.follower = HeadFollower(access.node, access.clock, access.table, transport, self, ended)
        self._sought: dict[str, float] = {}  # nodes that the head was asked for, and when
        access.resolver.seek = self.seek
        self.stopping = False  # its actors stop, and what they supervise elsewhere: that nodes end with it is no news either
        self.leaving = False  # this node is about to stop, and has asked others to: that they go is no news
        self._sender = access.sender
        self.notify = access.sender.notify

    @property
    def head(self) -> PeerId | None:
        """The head that it has joined."""
        return self.follower.head

    def join(self, head: PeerId, endpoint: str, terms: MemberTerms = MemberTerms()) -> None:  # noqa: B008 - immutable
        """Become a worker of ``head``: obey its address book; stop when it is gone, or ``orphan_grace`` later.

        Where a network parts members, watch for ways that are cut between this one and others.
        """
        if self._transport is not None and terms.silence and endpoint.startswith("tcp://"):
            self._transport.watch(CUT_OFF * terms.silence)
        self.follower.follow(head, endpoint, terms)
        self.greet(head, endpoint)

    def announce_ready(self) -> None:
        """Tell the head that the entry function has returned."""
        assert self.head is not None, "only a node that joined a head is awaited"
        self.follower.ready = True
        self.notify(self._table.current[self.head.name], [envelope.READY])

    def greet(self, peer: PeerId, endpoint: str) -> Peer:
        """Make a node known and meet it. Its older life, if known, is over."""
        met = self._know(peer, endpoint)
        self._sender.meet(met)
        return met

    def meet_all(self) -> None:
        """Meet every node that is known, also again, because this one listens to heartbeats from now on."""
        for peer in list(self._table.current.values()):
            self._sender.meet(peer)

    def _know(self, peer: PeerId, endpoint: str) -> Peer:
        """Make a node known. Its older life, if known, is over."""
        assert self._transport is not None, "a node that does not listen meets no other"
        self._transport.know(peer, endpoint)
        for older in self.cuts.end(peer.name):
            if older != peer:
                self.follower.acquit(older)
                self._transport.disconnect(older)
        if (known := self._table.current.get(peer.name)) is not None:
            self.follower.acquit(known.id)
            self.declare_down(Down(known.id.name, known.incarnation, f"replaced by incarnation {peer.incarnation}"))
        known = Peer(peer, endpoint, self._clock.now())
        self._table.add(known)
        return known

    def seek(self, node: str) -> None:
        """Ask the head where a node is that is wanted and not known here: what it said about it may have been lost."""
        if self.cuts.of(node):
            return
        now, head = self._clock.now(), self._table.find(self.head) if self.head is not None else None
        self._sought = {name: at for name, at in self._sought.items() if now - at < SEEK_AGAIN}
        if head is not None and not head.lost and node not in self._sought:
            self._sought[node] = now
            self.notify(head, [envelope.WHERE, node])

    def fail_calls(self, peer: Peer, cause: str) -> None:
        """End all calls to and from a life of a node that is over, or as good as."""
        self._remote.abandon(peer, NodeDown(f"node {peer.id} is down: {cause}"), wanted=self.stopping or self.leaving)
        if self._links is not None:
            self._links.drop(peer.id, f"node {peer.id} is down: {cause}")

    def declare_down(self, down: Down) -> None:
        """Fence a life of a node: its calls fail, its monitors fire, nothing of it is let in any more."""
        peer = self._table.find(PeerId(down.node, down.incarnation))
        if peer is not None:
            self._parted.discard(peer.id)
            if self._transport is not None:
                self._transport.disconnect(peer.id)
            self.fail_calls(peer, down.cause)
        elif self.cuts.of(down.node) and self._transport is not None:
            for over in self.cuts.end(down.node, down.incarnation):
                self._transport.disconnect(over)
        self._table.remove(down)

    def cut_off(self, down: Down) -> None:
        """Take a life of a node for down that may be met again: its calls fail, its monitors fire."""
        peer = self._table.find(PeerId(down.node, down.incarnation))
        if peer is None or self._transport is None:
            return
        self._parted.discard(peer.id)
        self._transport.part(peer.id)
        self.fail_calls(peer, down.cause)
        self.cuts.begin(peer, down.cause)
        self._table.forget(down)

    def _healed(self, peer: PeerId) -> None:
        """Tell the head that a node is reached again from which this one was cut off."""
        if (head := self._table.find(self.head) if self.head is not None else None) is not None:
            self.notify(head, [envelope.HEALED, peer.name, peer.incarnation])

    def recheck(self, peer: Peer) -> None:
        """Begin to watch anew a peer that was reported unreachable."""
        if self._transport is not None:
            self._transport.recheck(peer.id)

    # ---- a head that is lost, and found again

    def outlives(self, node: str) -> bool:
        """Return True if that node is this one's head, whose end this one survives."""
        return self.head is not None and node == self.head.name and self.follower.outlives

    def suspend(self, peer: Peer, cause: str) -> None:
        """Fail what is open with a peer that may come back, and send it nothing."""
        peer.lost = True
        self.fail_calls(peer, cause)

    def part(self, peer: Peer, cause: str) -> None:
        """Close the connections to a member that has lost this head, so that it can come back."""
        self.suspend(peer, cause)
        self._parted.add(peer.id)
        if self._transport is not None:
            self._transport.part(peer.id)

    def give_up(self, peer: Peer, cause: str) -> None:
        """Take a peer for down by this node's own evidence, while there is no head to say so."""
        self.follower.accuse(peer.id, cause)
        self.cut_off(Down(peer.id.name, peer.incarnation, cause))

    def obey(self, earlier: PeerId, head: PeerId, endpoint: str, accused: Mapping[PeerId, str]) -> None:
        """Take ``head``, which may be ``earlier``, for the head, and tell it what it must know of this node."""
        assert self._transport is not None, "a member listens"
        if head == earlier and (peer := self._table.find(head)) is not None:
            self._transport.part(head)
            self._revive(peer, endpoint)
        else:
            self._transport.succeed(earlier, head, obeys(self._node, head, earlier))
            self.declare_down(Down(earlier.name, earlier.incarnation, f"succeeded by {head}"))
            peer = self.greet(head, endpoint)
        up = [[p.id.name, p.incarnation, True] for p in self._table.current.values() if p is not peer]
        lives = up + [[d.node, d.incarnation, False] for d in self._table.last_down.values()]
        for first in range(0, len(lives), PAGE):
            self.notify(peer, [envelope.LIVES, lives[first : first + PAGE]])
        self._accused = {*self.cuts.causes, *accused}
        for other, cause in {**self.cuts.causes, **accused}.items():
            self.notify(peer, [envelope.LOST, other.name, other.incarnation, cause])
        self.notify(peer, [envelope.READY])

    def _revive(self, peer: Peer, endpoint: str) -> None:
        """Meet a life again whose connections have ended; nothing of what was open is left."""
        self._parted.discard(peer.id)
        peer.lost, peer.endpoint = False, endpoint
        peer.heard = self._clock.now()
        peer.casts_sent = peer.casts_confirmed = peer.casts_seen = peer.casts_reported = 0
        self._sender.meet(peer)

    # ---- what the transport reports

    def on_lost(self, lost: PeerId, cause: str) -> None:
        peer = self._table.find(lost)
        if peer is None:
            return
        if self._membership is not None:
            if cause != UNREACHABLE:
                peer.lost = True
                self.fail_calls(peer, cause)
            self._membership.lost(peer, cause)
            return
        if lost == self.head and self.follower.lost(cause):
            return
        if self.head is not None and lost != self.head:
            if self.follower.headless:
                self.give_up(peer, cause)
                return
            # Who is down, and why, is the head's to say, to all alike. Until it does, calls fail.
            peer.lost = True
            self.fail_calls(peer, cause)
            if (head := self._table.find(self.head)) is not None:
                self.notify(head, [envelope.LOST, lost.name, lost.incarnation, cause])
            return
        self.declare_down(Down(lost.name, lost.incarnation, cause))
        if lost == self.head and cause.startswith("refused: "):
            self.follower.end(f"the head declared it down: {cause}")
        elif lost == self.head:
            self.follower.end(f"the head {lost} is down: {cause}")

    def on_join(self, name: str, key: str, secret: str) -> Admission:
        if self._membership is None:
            raise HandshakeRefused(f"node {self._node} is not the head of a cluster")
        return self._membership.join(name, key, secret)

    def on_return(self, said: ReturnRequest, key: str) -> Admission:
        if self.head is not None and said.sender.name == self.head.name and said.sender < self.head:
            raise HandshakeRefused(obeys(self._node, self.head, said.sender))  # a head that doubts itself asks
        if self._membership is None and self.cuts.of(said.sender.name) == said.sender:
            raise ExpectedRefusal(f"node {self._node} is in reach of {said.sender} again")
        if self._membership is None:
            raise HandshakeRefused(f"node {self._node} is not the head of a cluster")
        return self._membership.returned(said, key)

    # ---- system messages

    def on_hello(self, sender: PeerId, endpoint: str, stays: bool) -> None:
        """Meet a node that has met this one. ``stays``: it listens to heartbeats."""
        if (known := self._resolver.known(sender)) is not None:
            known.stays = stays
            known.unused = 0
            if sender in self._accused and not known.lost:
                self._accused.discard(sender)
                self._healed(sender)
            if sender in self._parted:
                self._revive(known, endpoint)
            if not known.met and not known.lost:
                self._sender.meet(known)
            return
        if self._membership is not None and not self._membership.admits(sender):
            self._dropped["stranger"] += 1
            return
        if self.cuts.of(sender.name) == sender:
            if self.follower.headless:
                return
            self._healed(sender)
        self.greet(sender, endpoint).stays = stays

    def rest(self, peer: Peer) -> None:
        """Exchange no more heartbeats with a peer until there is something to say, if both can do without.

        A head and its members never can: each watches the other.
        """
        watched = self._membership is not None or peer.id == self.head
        if self._transport is not None and not (watched or peer.stays or peer.busy or self._table.heartbeats):
            peer.met = False
            self._transport.rest(peer.id)

    def on_system(self, peer: Peer, tag: int, fields: list[Any]) -> None:
        """Handle a message between a head and its workers. Raises DecodeError for one that the peer may not send."""
        if (membership := self._membership) is not None:
            if tag == envelope.READY:
                membership.ready(peer)
            elif tag == envelope.LOST:
                membership.accused(peer, PeerId(check_name(fields[0]), fields[1]))
            elif tag == envelope.LEAVE:
                membership.left(peer)
            elif tag == envelope.WHERE:
                membership.sought(peer, check_name(fields[0]))
            elif tag == envelope.HEALED:
                membership.healed(peer, PeerId(check_name(fields[0]), fields[1]))
            elif tag == envelope.LIVES:
                membership.told(peer, decode(list[tuple[str, int, bool]], fields[0]))
            else:
                raise DecodeError(f"message {tag} is not for the head")
        elif peer.id == self.head:
            self._on_head(tag, fields)
        else:
            raise DecodeError(f"only the head may send message {tag}")

    def _on_head(self, tag: int, fields: list[Any]) -> None:
        if tag == envelope.STOP:
            self._dismissed.set()
            self._ended("the head stopped it")
        elif tag == envelope.DOWN:
            name, incarnation, cause = fields
            if (name, incarnation) == self._node:
                self.follower.end(f"the head declared it down: {cause}")
            else:
                self.follower.acquit(PeerId(name, incarnation))
                self.declare_down(Down(name, incarnation, cause))
        elif tag == envelope.CUT:
            self.follower.acquit(PeerId(check_name(fields[0]), fields[1]))
            self.cut_off(Down(*fields))
        elif tag == envelope.HEALED:
            self.follower.acquit(PeerId(check_name(fields[0]), fields[1]))
        elif tag == envelope.TICKET:
            self.follower.on_ticket(fields[0])
        elif tag == envelope.CLAIMED:
            self._claimed()
        else:
            for name, incarnation, endpoint in decode(list[tuple[str, int, str]], fields[0]):
                other = PeerId(check_name(name), incarnation)
                if other != self._node and self._resolver.known(other) is None and not self._table.fenced(other):
                    known = self._know(other, endpoint)
                    if self._table.heartbeats:
                        self._sender.meet(known)
