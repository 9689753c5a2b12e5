"""The allow-list of CURVE public keys that may connect to this node.

Filled by the head (launches, redeemed invitations, the address book) and emptied by it (a node that is declared down or
removed). Asked by the authenticator about each connection, and about each greeting. Opens no socket. Keys are hexadecimal
text.
"""

from __future__ import annotations

from collections.abc import Callable

from .address import PeerId
from .errors import KeysError

MEMBER = "member"
GUEST = "guest"
UNKNOWN = ""
MOST_PAST = 4096  # keys remembered as refused for good; older ones become unknown


class Roster:
    """The allow-list of one node (see the module).

    ``own``: this node's key, which is accepted as well, because the node may talk to itself.
    """

    def __init__(self, own: str) -> None:
        self.guests: Callable[[], bool] = lambda: False  # True while an unknown key may redeem an invitation
        self.changed: Callable[[], None] = lambda: None  # called when a new key is admitted
        self._own = own
        self._peers: dict[str, PeerId] = {}
        self._keys: dict[PeerId, str] = {}
        self._past: dict[str, None] = {}

    def admit(self, peer: PeerId, key: str) -> None:
        """Accept ``key`` from now on, as the key of ``peer``. Raises KeysError for a key that has or had another peer."""
        if key == self._own:
            return
        if key in self._past or self._peers.get(key, peer) != peer or self._keys.get(peer, key) != key:
            raise KeysError(f"node {peer} cannot have this key: the node has another key, or the key another node")
        self._peers[key], self._keys[peer] = peer, key
        self.changed()

    def remove(self, peer: PeerId) -> None:
        """Refuse the peer's key for ever. Does nothing if it has none."""
        if (key := self._keys.pop(peer, "")) and self._peers.pop(key, None) is not None:
            self._past[key] = None
            if len(self._past) > MOST_PAST:
                del self._past[next(iter(self._past))]

    def succeed(self, earlier: PeerId, later: PeerId) -> None:
        """Let the key of ``earlier``, if it has one, be the key of ``later`` alone."""
        if key := self._keys.pop(earlier, ""):
            self._peers[key], self._keys[later] = later, key

    def standing(self, key: str) -> str:
        """Return MEMBER, GUEST (may redeem an invitation and do nothing else) or UNKNOWN."""
        if key == self._own or key in self._peers:
            return MEMBER
        return GUEST if key not in self._past and self.guests() else UNKNOWN

    def speaks_for(self, key: str, peer: PeerId) -> bool:
        return key == self._own or self._peers.get(key) == peer

    def over(self, key: str) -> bool:
        """Return True if waiting for this key to be admitted is in vain."""
        return key in self._past
