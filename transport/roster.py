"""The allow-list of CURVE public keys: which nodes may connect to this one.

Filled by the head (launches, redeemed invitations, the address book) and emptied by it (a node that is declared down or
removed). Asked by the authenticator about each connection, and about each greeting. Opens no socket. Keys are hexadecimal
text.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright.transport.address import PeerId
from blockwright.transport.errors import KeysError

MEMBER, GUEST, UNKNOWN = "member", "guest", ""
MOST_PAST = 4096  # keys that are refused for good; more are as unknown as any


class Roster:
    """See the module. ``own``: this node's key, which is let in as well: it may talk to itself."""

    def __init__(self, own: str) -> None:
        self.guests: Callable[[], bool] = lambda: False  # whether an unknown key may come in to redeem an invitation
        self.changed: Callable[[], None] = lambda: None  # a key is let in that was not before
        self._own = own
        self._peers: dict[str, PeerId] = {}
        self._keys: dict[PeerId, str] = {}
        self._past: dict[str, None] = {}

    def admit(self, peer: PeerId, key: str) -> None:
        """From here on ``key`` is let in and speaks for ``peer``. Raises KeysError for one that has or had another part."""
        if key == self._own:
            return
        if key in self._past or self._peers.get(key, peer) != peer or self._keys.get(peer, key) != key:
            raise KeysError(f"node {peer} cannot have this key: it is that of another, or one of them is over")
        self._peers[key], self._keys[peer] = peer, key
        self.changed()

    def remove(self, peer: PeerId) -> None:
        """Its key is refused for ever. Nothing where it has none."""
        if (key := self._keys.pop(peer, "")) and self._peers.pop(key, None) is not None:
            self._past[key] = None
            if len(self._past) > MOST_PAST:
                del self._past[next(iter(self._past))]

    def standing(self, key: str) -> str:
        """MEMBER, GUEST (may redeem an invitation and do nothing else) or UNKNOWN."""
        if key == self._own or key in self._peers:
            return MEMBER
        return GUEST if key not in self._past and self.guests() else UNKNOWN

    def speaks_for(self, key: str, peer: PeerId) -> bool:
        return key == self._own or self._peers.get(key) == peer

    def over(self, key: str) -> bool:
        """Whether waiting for a word about this key is in vain."""
        return key in self._past
