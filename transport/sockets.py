"""The transport between processes: one ROUTER that receives, and an ``Outbound`` for each peer and lane.

Each direction has a socket of its own. The ROUTER sends nothing but answers to greetings and to heartbeats of who was given
up, so it can neither drop silently nor block, and its edge-triggered descriptor needs no care beyond draining until EAGAIN.
Who speaks is known from the greeting of the connection (``Sessions``), not from a routing id that anybody could claim. Link
traffic and heartbeats have DEALERs of their own to the same ROUTER: bulk data never delays control messages, and neither
delays a heartbeat. Control messages between processes of one machine do without ZeroMQ (``direct.py``). A wake-up drains at
most ``DRAIN`` messages, so that one peer cannot starve the loop. Plain sockets with ``add_reader``, not ``zmq.asyncio``:
half the latency, less CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import zmq

from blockwright.transport import greeting, wire
from blockwright.transport.address import PeerId, direct_path, ipc_endpoint, private_directory, remove_directory
from blockwright.transport.curve import Authenticator, ClusterKeys, check_endpoint
from blockwright.transport.direct import DirectInbound, DirectOutbound
from blockwright.transport.errors import AddressError, PeerGone, Refused
from blockwright.transport.greeting import Greeting, Lane
from blockwright.transport.interface import UNREACHABLE, Receiver
from blockwright.transport.outbound import HIGH_WATER, Outbound
from blockwright.transport.sessions import Sessions
from blockwright.transport.wire import Buffer, WireError

log = logging.getLogger("blockwright.transport")
DRAIN = 256  # messages in one go
TCP_PATIENCE = 30.0  # seconds without a sign of a peer's process, unless ``watch`` says otherwise
PULSE_GRACE = 0.1  # seconds in which the loss of a pulse may turn out to be the loss of everything; busy machines take some
_NOBLOCK, _POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)  # arithmetic on pyzmq's enums is slow
_BATCH_MARK = bytes([wire.BATCH])


class SocketTransport:
    """See the module and ``interface.Transport``. Binds at once.

    listen: a directory (mode 0700, made if missing; None: a fresh one) for a socket file, or ``tcp://HOST:PORT`` (0: any).
    keys: of the cluster; an address that others than this machine can reach is refused without. Raises AddressError,
    KeysError.
    """

    link_kind = "frames"

    def __init__(self, peer: PeerId, listen: Path | str | None = None, keys: ClusterKeys | None = None) -> None:
        self.peer = peer
        self._made = None if listen else private_directory()  # removed with this transport
        listen = listen or self._made or ""
        self._keys = keys
        self._patience = TCP_PATIENCE if isinstance(listen, str) else None
        wanted = ipc_endpoint(private_directory(listen), peer) if isinstance(listen, Path) else check_endpoint(listen, keys)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._authenticator = Authenticator(self._context, keys) if keys is not None else None
        try:
            self.endpoint = self._bind(wanted)
            self._direct = DirectInbound(direct_path(wanted), self) if self._is_direct(wanted) else None
        except (zmq.ZMQError, OSError) as error:
            self._context.destroy(linger=0)
            raise AddressError(f"cannot listen on {wanted}: {error}") from error
        self._sessions = Sessions(peer)
        self._lanes: dict[Lane, dict[PeerId, Outbound | DirectOutbound]] = {lane: {} for lane in Lane}
        self._control = self._lanes[Lane.CONTROL]
        self._endpoints: dict[PeerId, str] = {}
        self._started = self._closed = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._started = True
        if self._authenticator is not None:
            self._authenticator.start()
        if self._direct is not None:
            self._direct.start()
        self._loop.add_reader(self._router.fileno(), self._drain)
        self._loop.call_soon(self._drain)  # what came before the descriptor was watched made its edge already

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Raises AddressError for an endpoint that is no socket of this cluster's directory, or KeysError for one on
        another machine without keys."""
        if self.endpoint.startswith("ipc://"):
            directory = self.endpoint.rpartition("/")[0]
            if endpoint.rpartition("/")[0] != directory or "\0" in endpoint:
                raise AddressError(f"endpoint {endpoint[:200]!r} of {peer} is not in {directory}")
        else:
            check_endpoint(endpoint, self._keys)
        if peer not in self._endpoints and not self._closed:
            self._endpoints[peer] = endpoint
            for lane in (Lane.CONTROL, Lane.PULSE):
                self._open(peer, lane)

    def disconnect(self, peer: PeerId) -> None:
        self._endpoints.pop(peer, None)
        self._sessions.release(peer)
        for lane in self._lanes.values():
            if outbound := lane.pop(peer, None):
                outbound.close()

    def watch(self, seconds: float) -> None:
        self._patience = seconds

    def recheck(self, peer: PeerId) -> None:
        if peer in self._endpoints:
            self._open(peer, Lane.PULSE)

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        outbound = self._lanes[Lane.PULSE].get(peer)
        if outbound is None:
            raise PeerGone(f"node {peer} is not connected")
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
        elif flat:
            outbound.send_frames([wire.SINGLE_MARK, body, *flat])
        else:
            outbound.send_small(body)

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
        if self._direct is not None:
            self._direct.close()
        self._router.close(linger=0)
        self._context.destroy(linger=0)
        if self.endpoint.startswith("ipc://"):
            with contextlib.suppress(OSError):
                Path(self.endpoint.removeprefix("ipc://")).unlink()
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
            self._keys.protect(router, server=True)
        router.bind(wanted)
        if not wanted.startswith("tcp://"):
            return wanted
        bound = router.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes), "the type of this option"
        port = bound.rstrip(b"\0").decode().rpartition(":")[2]
        return f"{wanted.rpartition(':')[0]}:{port}"

    def _is_direct(self, endpoint: str) -> bool:
        return endpoint.startswith("ipc://") and self._keys is None

    def _open(self, peer: PeerId, lane: Lane) -> Outbound | DirectOutbound:
        endpoint, hello = self._endpoints[peer], Greeting(self.peer, peer, lane)

        def on_lost(cause: str) -> None:
            self._on_lost(peer, lane, cause)

        made: Outbound | DirectOutbound
        if lane is Lane.CONTROL and self._is_direct(endpoint):
            made = DirectOutbound(direct_path(endpoint), hello, on_lost)
        else:
            patience = self._patience if lane is Lane.PULSE else None
            made = Outbound(self._context, endpoint, hello, on_lost, keys=self._keys, patience=patience)
        self._lanes[lane][peer] = made
        return made

    def _on_lost(self, peer: PeerId, lane: Lane, cause: str) -> None:
        if peer not in self._endpoints:
            return
        if lane is Lane.PULSE and cause.startswith("disconnected"):
            # Pings are sent here alone. If the process ended, the other connections break in the same moment.
            lost = self._lanes[lane].pop(peer)
            self._loop.call_later(PULSE_GRACE, self._on_pulse_lost, peer, lost)
            return
        if lane is Lane.LINK and cause.startswith("disconnected"):
            del self._lanes[lane][peer]
            self._receiver.on_link_broken(peer)
            return
        self.disconnect(peer)
        self._receiver.on_lost(peer, cause)

    def _on_pulse_lost(self, peer: PeerId, lost: Outbound | DirectOutbound) -> None:
        if peer in self._endpoints and peer not in self._lanes[Lane.PULSE]:
            self._receiver.on_lost(peer, UNREACHABLE)

    def _drain(self) -> None:
        router = self._router
        for _ in range(DRAIN):
            # Reading EVENTS rearms the descriptor; asking first is cheaper than the exception of a failed receive.
            if self._closed or not int(router.get(zmq.EVENTS)) & _POLLIN:
                return
            identity = router.recv(_NOBLOCK)
            # The mark or batch is small and copied; what follows stays in libzmq's memory.
            mark = router.recv() if router.get(zmq.RCVMORE) else b""
            parts = [router.recv(copy=False)] if router.get(zmq.RCVMORE) else []
            while parts and parts[-1].more:
                parts.append(router.recv(copy=False))
            try:
                if (peer := self._sessions.peers.get(identity)) is not None:
                    self._deliver(peer, mark, [part.buffer for part in parts])
                    if identity in self._sessions.over:  # it lives and does not know
                        self._answer(identity, greeting.pack_refusal(f"{self.peer} has given {peer} up"))
                elif parts:
                    raise WireError("a connection begins with a message instead of a greeting")
                else:
                    self._answer(identity, self.admit(identity, mark)[1])
            except Exception as error:  # of the sender, or above: the rest of the messages must not be left lying
                self.complain(error)
        self._loop.call_soon(self._drain)

    def _answer(self, identity: bytes, answer: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone already, or does not read: its affair
            self._router.send_multipart([identity, answer], _NOBLOCK)

    def _deliver(self, peer: PeerId, mark: bytes, rest: list[memoryview]) -> None:
        if mark[:1] == _BATCH_MARK and not rest:
            for body in wire.unpack_batch(mark):
                self._receiver.on_message(peer, body, [])
        elif mark == wire.LINK_MARK and 0 < len(rest) < wire.MAX_FRAMES:
            self._receiver.on_link(peer, rest)
        else:
            self.take(peer, mark, rest)

    # ---- the Doorman of direct connections, and of the ROUTER's

    def admit(self, connection: bytes, said: bytes) -> tuple[PeerId | None, bytes]:
        """Whose connection it is by its greeting, None if nobody's, and the answer. Raises WireError."""
        try:
            greeted = greeting.parse(said)
            if isinstance(greeted, str):
                return None, self._receiver.on_join(greeted).pack()
            self._sessions.admit(connection, greeted)
            return greeted.sender, greeting.pack_welcome(self.peer, greeted.sender)
        except Refused as error:
            log.warning("node %s refused a connection: %s", self.peer, error)
            return None, greeting.pack_refusal(str(error))

    def take_small(self, peer: PeerId, body: memoryview) -> None:
        """A message without buffers."""
        self._receiver.on_message(peer, body, [])

    def take(self, peer: PeerId, mark: bytes | memoryview, rest: list[memoryview]) -> None:
        """A message with its buffers. Raises WireError."""
        if not 0 < len(rest) < wire.MAX_FRAMES:
            raise WireError(f"a message of {len(rest)} frames from {peer}")
        body, *buffers = rest
        if mark == wire.SINGLE_MARK:
            self._receiver.on_message(peer, body, buffers)
        elif mark == wire.SHARED_MARK and buffers:
            self._receiver.on_shared(peer, body, buffers[0], buffers[1:])
        else:
            raise WireError(f"unknown message mark {bytes(mark[:8]).hex()}")

    def complain(self, error: Exception) -> None:
        """What a message gave rise to: the fault of its sender, or one above."""
        if isinstance(error, WireError | AddressError):
            self._receiver.on_garbage(str(error))
        else:
            self._loop.call_exception_handler({"message": f"a message to {self.peer} failed", "exception": error})
