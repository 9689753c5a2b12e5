"""The head's address book: which members learn where the others are.

Owns the pairs of members that lost each other while the head reaches both. Where the application lets both live, neither
learns where the other is until each has reached it again; to each other they are as good as down. Declares none down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ...transport.address import PeerId
from ..base import envelope
from ..node.node import Node
from ..node.peers import Peer
from .members import ClusterMembers, Member

log = logging.getLogger("blockwright.runtime")
PAGE = 512  # nodes in a message
ENOUGH = 4  # answers that one of a pair has had, where the other has none
OUT_OF_REACH = "out of reach from here, and not of the head"


class AddressBook:
    """See the module. changed: called when a pair has lost each other, or is together again."""

    def __init__(self, node: Node, members: ClusterMembers, changed: Callable[[], None]) -> None:
        self._node, self._members = node, members
        self._changed = changed
        self._cuts: dict[frozenset[PeerId], float] = {}  # pairs that lost each other, and since when
        self._healed: dict[frozenset[PeerId], float] = {}  # pairs that reach each other again, and since when
        self._greeted: dict[tuple[PeerId, PeerId], float] = {}  # (who, whom): it reaches whom it had lost, and since when
        self._answered: dict[frozenset[PeerId], list[PeerId]] = {}  # pairs -> who of them has had an answer

    def publish(self, new: Peer) -> None:
        """Tell a node that is up where all the others are, in pieces, and the others where it is."""
        others = [peer for peer in self._up() if peer is not new and not self.cut_off(peer.id, new.id)]
        for first in range(0, len(others), PAGE):
            self._node.peering.notify(new, [envelope.BOOK, list(map(_entry, others[first : first + PAGE]))])
        for peer in others:
            self._node.peering.notify(peer, [envelope.BOOK, [_entry(new)]])

    def tell(self, peer: Peer, name: str) -> None:
        """Tell a node where another one is, if that is up."""
        for found in [one for one in self._up() if one.id.name == name and not self.cut_off(one.id, peer.id)]:
            self._node.peering.notify(peer, [envelope.BOOK, [_entry(found)]])

    # ---- pairs that lost each other

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The names of the pairs that are cut off from each other now."""
        return sorted((one.name, other.name) for one, other in map(sorted, self._cuts))

    @property
    def sentences(self) -> list[str]:
        """A sentence for people on each pair."""
        now = self._node.clock.now()
        pairs = sorted((sorted(one.name for one in pair), now - since) for pair, since in self._cuts.items())
        return [f"{' and '.join(pair)} do not reach each other for {lasts:.0f} s; both live on" for pair, lasts in pairs]

    def cut_off(self, one: PeerId, other: PeerId) -> bool:
        """Return whether the two are cut off from each other."""
        return frozenset((one, other)) in self._cuts

    def decided(self, accused: PeerId, reporter: PeerId, since: float) -> bool:
        """Return whether nothing follows from an accusation of that time: the two are cut off from each other, or have been
        since then, or the reporter reaches the accused again.
        """
        pair = frozenset((accused, reporter))
        reached = max(self._healed.get(pair, since), self._greeted.get((reporter, accused), since))
        return pair in self._cuts or reached > since

    def cut(self, one: Member, other: Member) -> None:
        """Let two members that lost each other live on apart."""
        log.warning("%s and %s do not reach each other; both live on, and take each other for down", one.id, other.id)
        self._cuts.setdefault(frozenset((one.id, other.id)), self._node.clock.now())
        for peer in self._of(one.id, other.id):
            self.remind(peer)
        self._changed()

    def remind(self, peer: Peer) -> None:
        """Tell a member from whom it is cut off: an earlier message may have been lost."""
        for pair in [pair for pair in self._cuts if peer.id in pair]:
            (other,) = pair - {peer.id}
            self._node.peering.notify(peer, [envelope.CUT, other.name, other.incarnation, OUT_OF_REACH])

    def healed(self, reporter: Peer, other: PeerId) -> None:
        """Bring two members together again once each has reached the other, or one of them has several times: the other may
        not have heard that it is cut off.
        """
        pair = frozenset((reporter.id, other))
        if pair in self._cuts:
            answered = self._answered.setdefault(pair, [])
            answered.append(reporter.id)
            if len({*answered}) < len(pair) and len(answered) < ENOUGH:
                return
        self._answered.pop(pair, None)
        cut, now = self._cuts.pop(pair, None) is not None, self._node.clock.now()
        self._greeted[reporter.id, other] = now
        if cut:
            self._healed[pair] = now
            log.info("%s and %s reach each other again", reporter.id, other)
        for peer in self._of(other):
            self._node.peering.notify(reporter, [envelope.BOOK, [_entry(peer)]])
            self._node.peering.notify(peer, [envelope.BOOK, [_entry(reporter)]])
        if cut:
            self._changed()

    def acquit(self, reporter: PeerId, accused: PeerId) -> None:
        """Tell a member that its accusation is void, so that it does not tell the next head of it."""
        for peer in self._of(reporter):
            self._node.peering.notify(peer, [envelope.HEALED, accused.name, accused.incarnation])

    def ended(self, node: PeerId) -> None:
        """Forget the pairs of a life that is over."""
        self._answered = {pair: one for pair, one in self._answered.items() if node not in pair}
        self._greeted = {pair: since for pair, since in self._greeted.items() if node not in pair}
        self._healed = {pair: since for pair, since in self._healed.items() if node not in pair}
        kept = {pair: since for pair, since in self._cuts.items() if node not in pair}
        if len(kept) < len(self._cuts):
            self._cuts = kept
            self._changed()

    # ---- inside

    def _up(self) -> list[Peer]:
        known = self._node.peers()
        return [known[one.id.name] for one in self._members if one.state == "up" and one.id.name in known]

    def _of(self, *nodes: PeerId) -> Iterator[Peer]:
        return (peer for peer in self._up() if peer.id in nodes)


def _entry(peer: Peer) -> list[Any]:
    """Return the line of a node in the address book."""
    return [peer.id.name, peer.id.incarnation, peer.endpoint]
