"""Who may talk to a cluster whose sockets can be reached by others: one pair of CURVE keys for each cluster.

Whoever holds the pair is a member; everybody else is refused in the handshake, before a byte of a message is read. Owns the
pair, its file (mode 0600), the settings of sockets, and the authenticator that libzmq asks about each connection. It fails
closed: a socket insists on an answer of the authenticator for exactly its domain (ZAP_ENFORCE_DOMAIN), so while that is
dead or does not know the domain nobody gets in. Keys travel in files and pipes, never in environments or command lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from blockwright.transport.address import is_loopback, is_wildcard, tcp_parts
from blockwright.transport.errors import AddressError, KeysError

log = logging.getLogger("blockwright.transport")
DOMAIN = b"blockwright"
KEY_LENGTH = 40  # characters of Z85
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # fixed by RFC 27
_FIELDS = 7  # version, request, domain, address, routing id, mechanism, key
_LINE = re.compile(r"^(public|secret) = (\S{40})$", re.MULTILINE)
_NOBLOCK, _POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
ZmqSocket = zmq.Socket[bytes]


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The pair of one cluster, each Z85 text of 40 characters."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        try:
            derived = zmq.curve_public(self.secret)
        except (zmq.ZMQError, ValueError, TypeError) as error:
            raise KeysError(f"the secret key is no Z85 text of {KEY_LENGTH} characters") from error
        if derived != self.public:
            raise KeysError("the public and the secret key do not belong together; use the two from one file")

    @classmethod
    def generate(cls) -> ClusterKeys:
        return cls(*zmq.curve_keypair())

    @classmethod
    def read(cls, path: Path) -> ClusterKeys:
        """From a file that ``write`` made. Raises KeysError, also when others may read it."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = path.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise KeysError(f"key file {path} cannot be read: {error}") from error
        if mode & 0o077:
            raise KeysError(f"key file {path} is open to others (mode {mode:04o}); run: chmod 600 {path}")
        found = dict(_LINE.findall(text))
        if set(found) != {"public", "secret"}:
            raise KeysError(f"key file {path} lacks a line 'public = KEY' or 'secret = KEY'")
        return cls(found["public"].encode(), found["secret"].encode())

    def write(self, path: Path) -> None:
        """To a new file that only this user can read. Raises FileExistsError."""
        text = f"# Whoever holds this file is a member of the cluster.\npublic = {self.public.decode()}\n"
        text += f"secret = {self.secret.decode()}\n"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    def protect(self, socket: ZmqSocket, *, server: bool) -> None:
        """Before bind or connect: talk to members of this cluster only."""
        socket.set(zmq.CURVE_SECRETKEY, self.secret)
        socket.set(zmq.CURVE_PUBLICKEY, self.public)
        if server:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, DOMAIN)
            socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        else:
            socket.set(zmq.CURVE_SERVERKEY, self.public)


class Authenticator:
    """Answers libzmq about each connection to a protected socket of ``context``; runs in the event loop."""

    def __init__(self, context: zmq.Context[ZmqSocket], keys: ClusterKeys) -> None:
        self.refused = 0
        self._member = z85.decode(keys.public)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._answer)
        self._loop.call_soon(self._answer)  # questions that came before made their edge already

    def close(self) -> None:
        """From here on nobody gets in. Idempotent."""
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=0)

    def _answer(self) -> None:
        # EVENTS is read again after each answer: the descriptor is edge-triggered and a send may consume the edge.
        while not self._socket.closed and int(self._socket.get(zmq.EVENTS)) & _POLLIN:
            frames = self._socket.recv_multipart(_NOBLOCK)
            empty = frames.index(b"") if b"" in frames else len(frames)
            question = frames[empty + 1 :]
            if len(question) != _FIELDS:
                log.error("the authenticator got %d fields instead of %d", len(question), _FIELDS)
                continue
            version, request, domain, address, _, mechanism, key = question
            member = (domain, mechanism, key) == (DOMAIN, b"CURVE", self._member)
            if not member:
                self.refused += 1
                log.warning("a connection from %s was refused: its key is not of this cluster", address.decode("latin-1"))
            status = (b"200", b"OK", b"member", b"") if member else (b"400", b"not a member", b"", b"")
            self._socket.send_multipart([*frames[: empty + 1], version, request, *status], _NOBLOCK)


def check_endpoint(endpoint: str, keys: ClusterKeys | None) -> str:
    """A TCP endpoint that may be bound or connected to. Raises AddressError, KeysError."""
    host, _ = tcp_parts(endpoint)
    if is_wildcard(host):
        raise AddressError(f"{endpoint} stands for every address of this machine; give the one at which others reach it")
    if keys is None and not is_loopback(host):
        raise KeysError(f"{endpoint} can be reached from other machines, so keys are needed; give keys or use 127.0.0.1")
    return endpoint
