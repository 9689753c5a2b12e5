"""Sessions: the map from each incoming connection to its peer, known from the handshake.

Owns the refusal of connections that mean another node (the port changed hands, or the address is old). Also refuses a
second bearer of a name and incarnation, which a ROUTER by itself would ignore silently (libzmq#4503). The ROUTER draws an
id for each connection, so that no peer can speak in another's name. ``Wires`` ends connections that a ROUTER cannot end.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque

from .address import PeerId
from .errors import HandshakeRefused, ReleaseRefused
from .handshake import Greeting, Lane

MOST = 16384  # connections remembered; three for each peer
MOST_REFUSED = 64  # refused releases remembered
MOST_PAST = 4096  # lives that are over and might still knock


class Sessions:
    """The sessions of one ROUTER (see the module)."""

    def __init__(self, own: PeerId) -> None:
        self.peers: dict[bytes, PeerId] = {}  # by connection id
        self.over: set[bytes] = set()  # pulses of peers that are over
        self.greetings: dict[PeerId, Greeting] = {}  # what each living peer said
        self.refused: deque[ReleaseRefused] = deque(maxlen=MOST_REFUSED)  # nodes whose release is too far away
        self.parted: dict[bytes, tuple[PeerId, Lane]] = {}  # connections that count no more, of peers that may come back
        self._claims: dict[tuple[PeerId, Lane], bytes] = {}
        self._past: dict[PeerId, str] = {}  # why they are refused; the oldest first
        self._own = own

    def admit(self, connection: bytes, said: Greeting) -> None:
        """Let the connection speak for the sender from now on. Raises HandshakeRefused."""
        claim = (said.sender, said.lane)
        if said.to != self._own:
            raise HandshakeRefused(f"this is node {self._own}, not {said.to}; its address is out of date")
        self.check(said.sender)
        if claim in self._claims and said.lane is Lane.CONTROL:  # other lanes may reconnect
            raise HandshakeRefused(f"node {said.sender} is connected already; names and incarnations must be unique")
        if len(self.peers) >= MOST:
            self._forget()
        self.greetings[said.sender] = said
        self._claims[claim] = connection
        self.peers[connection] = said.sender

    def check(self, peer: PeerId) -> None:
        """Raise HandshakeRefused for a peer that is over: it was given up before all its connections were made."""
        if peer in self._past:
            raise HandshakeRefused(self._past[peer])

    def why(self, peer: PeerId) -> str:
        """Return the sentence with which a peer that is over is refused."""
        return self._past.get(peer, f"{self._own} has given {peer} up")

    def release(self, peer: PeerId, why: str = "") -> None:
        """End the session of a peer that is over.

        Late messages on its connections are still known as its own; no other connection is accepted for it.
        """
        self._past.setdefault(peer, why or f"{self._own} has given {peer} up")
        self.greetings.pop(peer, None)
        if len(self._past) > MOST_PAST:
            del self._past[next(iter(self._past))]
        for parted, (owner, of) in list(self.parted.items()):
            if owner == peer:
                del self.parted[parted]
                if of is Lane.PULSE:
                    self.over.add(parted)
        for lane in Lane:
            connection = self._claims.pop((peer, lane), None)
            if connection is not None and lane is Lane.PULSE:
                self.over.add(connection)

    def part(self, peer: PeerId) -> None:
        """End the session of a peer that may come back; what comes on its connections counts no more."""
        for lane in Lane:
            if (claimed := self._claims.pop((peer, lane), None)) is not None:
                self.parted[claimed] = peer, lane

    def _forget(self) -> None:
        """Forget connections of peers that are over. Raises HandshakeRefused if there are none."""
        living = set(self._claims.values())
        for connection in [c for c in self.peers if c not in living]:
            del self.peers[connection]
            self.parted.pop(connection, None)
            self.over.discard(connection)
        if len(self.peers) >= MOST:
            raise HandshakeRefused(f"{MOST} connections are open; no more are taken")


class Wires:
    """The operating system's connections of each peer, so that a peer that is over can be cut off.

    A ROUTER cannot close one of its connections. A descriptor is used again once its connection has ended, so the other
    end's address is compared. Socket files have no such address and are governed by their directory.
    """

    def __init__(self) -> None:
        self._of: dict[PeerId, list[tuple[int, object]]] = {}

    def record(self, peer: PeerId, descriptor: int) -> None:
        if (far := _far_end(descriptor)) is not None:
            self._of.setdefault(peer, []).append((descriptor, far))

    def forget(self, peer: PeerId) -> None:
        """Leave the peer's connections open."""
        self._of.pop(peer, None)

    def cut(self, peer: PeerId) -> None:
        """End the peer's connections. libzmq sees them end as if the peer had closed them."""
        for descriptor, far in self._of.pop(peer, ()):
            if _far_end(descriptor) == far:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as wire:
                    wire.shutdown(socket.SHUT_RDWR)


def _far_end(descriptor: int) -> object:
    """Return address and port of the other end, or None if there is none."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as wire:
            return wire.getpeername() or None
    except OSError:
        return None
