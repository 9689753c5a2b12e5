"""The transport between processes: one ROUTER that receives, and an ``Outbound`` for each peer and lane.

Each direction has a socket of its own. The ROUTER sends nothing but answers to greetings and to heartbeats of peers that
were given up, so it can neither drop silently nor block, and its edge-triggered descriptor needs no care beyond draining
until EAGAIN. The greeting of the connection identifies the sender (``Sessions``), not a routing id that any process could
claim. Link traffic and heartbeats have DEALERs of their own to the same ROUTER: bulk data never delays control messages,
and neither delays a heartbeat. A wake-up drains at most ``DRAIN`` messages, so that one peer cannot starve the loop, and
messages sent in reaction leave before the rest is read. Plain sockets with ``add_reader``, not ``zmq.asyncio``: half the
latency, less CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import zmq

from . import handshake as greeting
from . import wire
from .address import (
    PeerId,
    ipc_endpoint,
    keyed,
    lasting_socket,
    private_directory,
    remove_directory,
    remove_lasting,
    split_key,
)
from .curve import Authenticator, NodeKeys, check_endpoint
from .errors import AddressError, ExpectedRefusal, HandshakeRefused, KeysError, PeerGone, ReleaseRefused
from .handshake import SPOKEN, Admission, Greeting, JoinRequest, Lane, ReturnRequest
from .interface import UNREACHABLE, Receiver
from .outbound import HIGH_WATER, Outbound
from .roster import Roster
from .sessions import Sessions, Wires
from .wire import Batch, Buffer, WireError

log = logging.getLogger("blockwright.transport")
DRAIN = 64  # messages in one wake-up; messages in a batch count one by one
TCP_PATIENCE = 30.0  # seconds without a sign of a peer's process, unless ``watch`` says otherwise
PULSE_GRACE = 0.1  # seconds in which the loss of a pulse may turn out to be the loss of everything; busy machines take some
_NOBLOCK = int(zmq.NOBLOCK)
_POLLIN = int(zmq.POLLIN)
_EVENTS = int(zmq.EVENTS)  # arithmetic on pyzmq's enums is slow


class SocketTransport:
    """The ZeroMQ transport of one node (see the module and ``interface.Transport``). Binds at once.

    listen: a directory (mode 0700, made if missing; None: a fresh one) for a socket file, or ``tcp://HOST:PORT`` (0:
    any). keys: of this node; without keys, an address that other machines can reach is refused. With keys everything is
    encrypted, endpoints name keys, and only keys on the roster are accepted. lasting: a later life of this node listens at
    the same address, also of a socket file. Raises AddressError, KeysError.
    """

    link_kind = "frames"

    def __init__(
        self, peer: PeerId, listen: Path | str | None = None, keys: NodeKeys | None = None, *, lasting: bool = False
    ) -> None:
        self.peer = peer
        self._made = None if listen else private_directory()  # removed with this transport
        listen = listen or self._made or ""
        self._keys = keys
        self._patience = TCP_PATIENCE if isinstance(listen, str) else None
        wanted = ipc_endpoint(private_directory(listen), peer) if isinstance(listen, Path) else check_endpoint(listen, keys)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._roster = Roster(keys.name) if keys is not None else None
        self._authenticator = Authenticator(self._context, self._roster) if self._roster is not None else None
        try:
            bound = self._bind(wanted)
            self._file = bound.removeprefix("ipc://") if bound.startswith("ipc://") else ""
            bound = f"ipc://{lasting_socket(Path(self._file), peer.name)}" if lasting and self._file else bound
            self.endpoint = bound if keys is None else keyed(bound, keys.name)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise AddressError(f"cannot listen on {wanted}: {zmq.strerror(error.errno or 0)}") from error
        self._sessions, self._wires = Sessions(peer), Wires()
        self._lanes: dict[Lane, dict[PeerId, Outbound]] = {lane: {} for lane in Lane}
        self._control = self._lanes[Lane.CONTROL]
        self._endpoints: dict[PeerId, str] = {}
        self._unanswered: set[PeerId] = set()  # the connection for heartbeats broke alone; not to be opened by itself
        self._unread: tuple[PeerId, Batch] | None = None  # the rest of a batch
        self._started = self._closed = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._started = True
        if self._authenticator is not None:
            self._authenticator.start()
        self._loop.add_reader(self._router.fileno(), self._drain)
        self._loop.call_soon(self._drain)  # earlier messages made their edge before the descriptor was watched

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Make ``peer`` reachable. Raises AddressError, KeysError."""
        self.know(peer, endpoint)
        if peer not in self._endpoints and not self._closed:
            self._endpoints[peer] = endpoint
            for lane in (Lane.CONTROL, Lane.PULSE):
                self._open(peer, lane)

    def know(self, peer: PeerId, endpoint: str) -> None:
        """Check the endpoint of ``peer`` and accept its connections.

        Raises AddressError for an endpoint that is no socket of this cluster's directory. Raises KeysError for an
        endpoint on another machine without keys, or with another key than the one of ``peer``.
        """
        where, key = split_key(endpoint)
        if self.endpoint.startswith("ipc://"):
            directory = self.endpoint.rpartition("/")[0]
            if where.rpartition("/")[0] != directory or "\0" in endpoint:
                raise AddressError(f"endpoint {endpoint[:200]!r} of {peer} is not in {directory}")
        else:
            check_endpoint(where, self._keys)
        if (self._keys is not None) != bool(key):
            raise KeysError(f"one of {self.peer} and {peer} has keys and the other has none; they cannot talk")
        self.admit(peer, key)

    def admit(self, peer: PeerId, key: str) -> None:
        if self._roster is not None:
            self._roster.admit(peer, key)

    def invite(self, wanted: Callable[[], bool]) -> None:
        if self._roster is not None:
            self._roster.guests = wanted

    def greeting(self, peer: PeerId) -> Greeting | None:
        return self._sessions.greetings.get(peer)

    def refused(self) -> list[ReleaseRefused]:
        return list(self._sessions.refused)

    def rest(self, peer: PeerId) -> None:
        for lane in (Lane.PULSE, Lane.LINK):
            if outbound := self._lanes[lane].pop(peer, None):
                outbound.close()

    def disconnect(self, peer: PeerId, why: str = "") -> None:
        self._hang_up(peer)
        self._sessions.release(peer, why)
        if self._roster is not None:
            self._roster.remove(peer)
            self._wires.cut(peer)

    def part(self, peer: PeerId) -> None:
        self._hang_up(peer)
        self._sessions.part(peer)

    def succeed(self, earlier: PeerId, later: PeerId, why: str) -> None:
        self._hang_up(earlier)
        self._sessions.release(earlier, why)
        if self._roster is not None:
            self._roster.succeed(earlier, later)
        self._wires.forget(earlier)  # its heartbeats are answered with that sentence

    async def ask(self, endpoint: str, request: ReturnRequest) -> Admission:
        from .join_request import ask_head  # few nodes ever ask

        return await ask_head(endpoint, request, self._keys)

    def _hang_up(self, peer: PeerId) -> None:
        self._endpoints.pop(peer, None)
        self._unanswered.discard(peer)
        for lane in self._lanes.values():
            if outbound := lane.pop(peer, None):
                outbound.close()

    def watch(self, seconds: float) -> None:
        self._patience = seconds

    def recheck(self, peer: PeerId) -> None:
        if peer in self._endpoints:
            self._unanswered.discard(peer)
            self._open(peer, Lane.PULSE)

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        outbound = self._lanes[Lane.PULSE].get(peer)
        if outbound is None:
            if peer not in self._endpoints or peer in self._unanswered:
                raise PeerGone(f"node {peer} is not connected")
            outbound = self._open(peer, Lane.PULSE)
        wire.checked(body, ())
        outbound.send_small(body)

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = (), places: bytes = b"") -> None:
        outbound = self._control.get(peer)
        if outbound is None:
            raise PeerGone(f"node {peer} is not connected")
        if not buffers and not places and len(body) < wire.BATCH_LIMIT:
            outbound.send_small(body)
            return
        flat = wire.checked(body, buffers)
        if places:
            outbound.send_frames([wire.SHARED_MARK, body, places, *flat])
        elif (size := len(body) + sum(map(len, flat))) < wire.BATCH_LIMIT:
            outbound.send_small_parts(body, flat, size)
        else:
            outbound.send_frames([wire.SINGLE_MARK, body, *flat])

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        if peer not in self._endpoints:
            raise PeerGone(f"node {peer} is not connected")
        outbound = self._lanes[Lane.LINK].get(peer) or self._open(peer, Lane.LINK)
        outbound.send_frames([wire.LINK_MARK, *frames])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._endpoints):
            self.disconnect(peer)
        if self._started:
            self._loop.remove_reader(self._router.fileno())
        if self._authenticator is not None:
            self._authenticator.close()
        self._router.close(linger=0)
        self._context.destroy(linger=0)
        if self._file:
            remove_lasting(Path(self._file), Path(split_key(self.endpoint)[0].removeprefix("ipc://")))
            if self._made is not None:
                remove_directory(self._made)

    def _bind(self, wanted: str) -> str:
        router = self._router
        router.linger = 0
        router.rcvhwm = HIGH_WATER
        router.set(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        router.set(zmq.ROUTER_MANDATORY, 1)  # an answer that cannot be sent is an error here, not a silent drop
        if wanted.startswith("tcp://["):
            router.set(zmq.IPV6, 1)
        if self._keys is not None:
            self._keys.protect(router)
        router.bind(wanted)
        if not wanted.startswith("tcp://"):
            return wanted
        bound = router.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes), "the type of this option"
        port = bound.rstrip(b"\0").decode().rpartition(":")[2]
        return f"{wanted.rpartition(':')[0]}:{port}"

    def _open(self, peer: PeerId, lane: Lane) -> Outbound:
        endpoint = self._endpoints[peer]
        hello = Greeting(self.peer, peer, lane, release=greeting.own_release())

        def on_lost(cause: str) -> None:
            self._on_lost(peer, lane, cause)

        patience = self._patience if lane is Lane.PULSE else None
        made = Outbound(self._context, endpoint, hello, on_lost, keys=self._keys, patience=patience)
        self._lanes[lane][peer] = made
        return made

    def _on_lost(self, peer: PeerId, lane: Lane, cause: str) -> None:
        if peer not in self._endpoints:
            return
        if lane is Lane.PULSE and cause.startswith("disconnected"):
            # Pings are sent here alone. If the process ended, the other connections break in the same moment.
            del self._lanes[lane][peer]
            self._unanswered.add(peer)
            self._loop.call_later(PULSE_GRACE, self._on_pulse_lost, peer)
            return
        if lane is Lane.LINK and cause.startswith("disconnected"):
            del self._lanes[lane][peer]
            self._receiver.on_link_broken(peer)
            return
        self._hang_up(peer)  # the receiver decides whether it may come back
        self._receiver.on_lost(peer, cause)

    def _on_pulse_lost(self, peer: PeerId) -> None:
        if peer in self._unanswered:
            self._receiver.on_lost(peer, UNREACHABLE)

    def _drain(self) -> None:
        """Take the messages that have come, at most ``DRAIN``, and schedule another call for the rest.

        Reading the state consumes the edge of the descriptor, so a drain ends only where EAGAIN or EVENTS said that
        nothing is left; else nothing would call again. EVENTS is read once, after the first message, which is mostly the
        only one.
        """
        left, looked = DRAIN, False
        while not self._closed:
            if self._unread is not None:
                left -= self._hand_on(left)
            else:
                try:
                    connection = self._router.recv(_NOBLOCK)
                except zmq.Again:
                    return
                left -= self._take(connection, left)
            if left <= 0:
                self._loop.call_soon(self._drain)
                return
            if not looked:
                looked = True
                if not int(self._router.get(_EVENTS)) & _POLLIN:
                    return

    def _take(self, connection: bytes, limit: int) -> int:
        """Deliver one ZeroMQ message, or part of a batch, and return the number of messages delivered."""
        router = self._router
        first = router.recv(_NOBLOCK, copy=False)  # a Frame tells more cheaply if others follow
        mark = first.bytes  # mark or batch; later frames stay in libzmq's memory
        rest: list[memoryview] = []
        more = first.more
        while more:
            part = router.recv(_NOBLOCK, copy=False)
            rest.append(part.buffer)
            more = part.more
        try:
            if (peer := self._sessions.peers.get(connection)) is None:
                self._answer(connection, self._admit(connection, first, rest))
                return 1
            if self._sessions.over and connection in self._sessions.over:  # the peer does not know that it was given up
                self._answer(connection, greeting.pack_refusal(self._sessions.why(peer)))
            if self._sessions.parted and connection in self._sessions.parted:
                return 1
            if rest or not mark:
                self._deliver(peer, mark, rest)
            elif mark[0] == wire.ALONE:
                self._receiver.on_message(peer, memoryview(mark)[1:], [])
            elif mark[0] == wire.BATCH:
                self._unread = peer, wire.unpack_batch(mark)
                return self._hand_on(limit)
            else:
                self._deliver(peer, mark, rest)
        except Exception as error:  # a fault of the sender, or above: later messages must still be delivered
            self._complain(error)
        return 1

    def _hand_on(self, limit: int) -> int:
        """Deliver messages of the batch that is being read.

        Returns their number, ``limit`` if there may be more.
        """
        assert self._unread is not None, "there is a batch"
        peer, batch = self._unread
        on_message, count = self._receiver.on_message, 0
        for body, buffers in batch:
            try:
                on_message(peer, body, buffers)
            except Exception as error:
                self._complain(error)
            count += 1
            if count == limit:
                return count
        self._unread = None
        return count

    def _deliver(self, peer: PeerId, mark: bytes, rest: list[memoryview]) -> None:
        """Deliver a message of several frames. Raises WireError."""
        if not 0 < len(rest) < wire.MAX_FRAMES:
            raise WireError(f"a message of {len(rest)} frames from {peer}")
        if mark == wire.LINK_MARK:
            self._receiver.on_link(peer, rest)
        elif mark == wire.SINGLE_MARK:
            self._receiver.on_message(peer, rest[0], rest[1:])
        elif mark == wire.SHARED_MARK and len(rest) > 1:
            self._receiver.on_shared(peer, rest[0], rest[1], rest[2:])
        else:
            raise WireError(f"unknown message mark {mark[:8].hex()}")

    def _admit(self, connection: bytes, first: zmq.Frame, rest: list[memoryview]) -> bytes:
        """Return the answer to the first message of a connection. Raises WireError if it is no greeting."""
        if rest:
            raise WireError("a connection begins with a message instead of a greeting")
        key = "" if self._roster is None else str(first.get("User-Id"))  # as the authenticator found it
        try:
            greeted = greeting.parse(first.bytes)
            if isinstance(greeted, JoinRequest):
                return self._take_in(self._receiver.on_join(greeted.name, key, greeted.secret), greeted, key)
            if isinstance(greeted, ReturnRequest):
                return self._take_in(self._receiver.on_return(greeted, key), greeted, key)
            self._sessions.check(greeted.sender)
            if self._roster is not None and not self._roster.speaks_for(key, greeted.sender):
                raise HandshakeRefused(f"this key does not speak for {greeted.sender}")
            self._sessions.admit(connection, greeted)
            if self._roster is not None:
                self._wires.record(greeted.sender, int(first.get(zmq.SRCFD)))
            return greeting.pack_welcome(self.peer, greeted.sender, SPOKEN.common(greeted.versions))
        except (HandshakeRefused, KeysError) as error:
            if isinstance(error, ReleaseRefused):
                self._sessions.refused.append(error)
            level = logging.DEBUG if isinstance(error, ExpectedRefusal) else logging.WARNING
            log.log(level, "node %s refused a connection: %s", self.peer, error)
            return greeting.pack_refusal(str(error))

    def _take_in(self, admission: Admission, asked: JoinRequest | ReturnRequest, key: str) -> bytes:
        self.admit(admission.own, key)
        return replace(admission, version=SPOKEN.common(asked.versions)).pack()

    def _answer(self, connection: bytes, answer: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the peer is gone or does not read; no answer is owed
            self._router.send_multipart([connection, answer], _NOBLOCK)

    def _complain(self, error: Exception) -> None:
        """Report the error that a message caused: a fault of its sender, or one above."""
        if isinstance(error, WireError | AddressError):
            self._receiver.on_garbage(str(error))
        else:
            self._loop.call_exception_handler({"message": f"a message to {self.peer} failed", "exception": error})
