"""CURVE encryption and authentication, with a key pair for each node.

A node accepts the keys on its roster; all others are refused in the handshake, before a byte of a message is read. Owns
the key pair, the socket options, and the authenticator that libzmq asks about each connection. It fails closed: a socket
insists on an answer of the authenticator for exactly its domain (ZAP_ENFORCE_DOMAIN), so no connection is accepted while
the authenticator is dead or does not know the domain. Secret keys travel only in pipes; never in environments or command
lines.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from .address import is_loopback, is_wildcard, tcp_parts
from .errors import AddressError, KeysError
from .roster import UNKNOWN, Roster

log = logging.getLogger("blockwright.transport")
DOMAIN = b"blockwright"
KEY_LENGTH = 40  # characters of Z85
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by RFC 27
_FIELDS = 7  # version, request, domain, address, routing id, mechanism, key
PATIENCE = 2.0  # seconds
MOST_WAITING = 256  # connections whose key is unknown
_NOBLOCK, _POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
ZmqSocket = zmq.Socket[bytes]


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """The key pair of one node, each Z85 text of 40 characters."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        try:
            derived = zmq.curve_public(self.secret)
        except (zmq.ZMQError, ValueError, TypeError) as error:
            raise KeysError(f"the secret key is no Z85 text of {KEY_LENGTH} characters") from error
        if derived != self.public:
            raise KeysError("the public and the secret key do not belong together")

    @classmethod
    def generate(cls) -> NodeKeys:
        return cls(*zmq.curve_keypair())

    @property
    def name(self) -> str:
        """Return the public key in the form of endpoints and rosters: hexadecimal."""
        return str(z85.decode(self.public).hex())

    def protect(self, socket: ZmqSocket, *, server: str = "") -> None:
        """Set the socket's CURVE options; call it before bind or connect.

        server: the key of the node that must answer, for the connecting end; none for the bound end.
        """
        socket.set(zmq.CURVE_SECRETKEY, self.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self.public)
        if server:
            socket.set(zmq.CURVE_SERVERKEY, z85.encode(bytes.fromhex(server)))
        else:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, DOMAIN)
            socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


class Authenticator:
    """The ZAP handler that answers libzmq about each connection to a protected socket of ``context``.

    It runs in the event loop. A key that is not on the roster may be a moment too early: the head may tell the key's
    owner about this node before this node has read about the owner. So the answer waits ``PATIENCE`` seconds for the
    roster.
    """

    def __init__(self, context: zmq.Context[ZmqSocket], roster: Roster) -> None:
        self.refused = 0
        self._roster = roster
        self._waiting: list[_Question] = []
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._loop.call_soon(self._read)  # earlier questions have made their edge already
        self._roster.changed = self._look_again

    def close(self) -> None:
        """Stop accepting connections. Idempotent."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)

    def _read(self) -> None:
        # EVENTS is read again after each question: the descriptor is edge-triggered and a send may consume the edge.
        while not self._socket.closed and int(self._socket.get(zmq.EVENTS)) & _POLLIN:
            frames = self._socket.recv_multipart(_NOBLOCK)
            empty = frames.index(b"") if b"" in frames else len(frames)
            asked = frames[empty + 1 :]
            if len(asked) != _FIELDS:
                log.error("the authenticator got %d fields instead of %d", len(asked), _FIELDS)
                continue
            version, request, domain, address, _, mechanism, key = asked
            question = _Question([*frames[: empty + 1], version, request], address.decode("latin-1"), key.hex())
            if (domain, mechanism) != (DOMAIN, b"CURVE"):
                self._answer(question, UNKNOWN)
            elif (standing := self._roster.standing(question.key)) or self._roster.over(question.key):
                self._answer(question, standing)
            elif len(self._waiting) >= MOST_WAITING or self._loop is None:
                self._answer(question, UNKNOWN)
            else:
                self._waiting.append(question)
                self._loop.call_later(PATIENCE, self._give_up, question)

    def _look_again(self) -> None:
        for question in list(self._waiting):
            if standing := self._roster.standing(question.key):
                self._waiting.remove(question)
                self._answer(question, standing)

    def _give_up(self, question: _Question) -> None:
        if question in self._waiting:
            self._waiting.remove(question)
            self._answer(question, self._roster.standing(question.key))

    def _answer(self, question: _Question, standing: str) -> None:
        if self._socket.closed:
            return
        if standing:
            status = (b"200", b"OK", question.key.encode(), b"")
        else:
            self.refused += 1
            log.warning("a connection from %s was refused: its key is not on the roster", question.address)
            status = (b"400", b"not a member", b"", b"")
        self._socket.send_multipart([*question.route, *status], _NOBLOCK)
        if self._loop is not None:
            self._loop.call_soon(self._read)  # the send may have consumed the edge


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    route: list[bytes]
    address: str
    key: str


def check_endpoint(endpoint: str, keys: NodeKeys | None) -> str:
    """Check that a TCP endpoint may be bound or connected to. Raises AddressError, KeysError."""
    host, _ = tcp_parts(endpoint)
    if is_wildcard(host):
        raise AddressError(f"{endpoint} stands for every address of this machine; give the one at which others reach it")
    if keys is None and not is_loopback(host):
        raise KeysError(f"{endpoint} can be reached from other machines, so keys are needed; give keys or use 127.0.0.1")
    return endpoint
