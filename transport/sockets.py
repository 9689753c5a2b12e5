"""The transport between processes: one ROUTER that only receives, and an ``Outbound`` for each peer and lane.

Each direction has a socket of its own. The ROUTER never sends, so it can neither drop silently nor block, and its
edge-triggered descriptor needs no care beyond draining until EAGAIN. Link traffic has a second DEALER to the same ROUTER:
bulk data queued on one never delays control messages on the other. A wake-up drains at most ``DRAIN`` messages, so that
one peer cannot starve the loop. Plain sockets with ``add_reader``, not ``zmq.asyncio``: half the latency, less CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import zmq

from blockwright.transport import wire
from blockwright.transport.address import PeerId, ipc_endpoint, parse_identity, private_directory
from blockwright.transport.errors import AddressError, PeerGone
from blockwright.transport.interface import Receiver
from blockwright.transport.outbound import HIGH_WATER, Outbound
from blockwright.transport.wire import Buffer, Traffic, WireError

DRAIN = 256  # messages in one go
_LINK_SUFFIX = "+link"
_NOBLOCK, _POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)  # arithmetic on pyzmq's enums is slow
_BATCH_MARK = bytes([wire.BATCH])


class SocketTransport:
    """See the module and ``interface.Transport``. Binds at once, in ``directory`` (mode 0700)."""

    def __init__(self, peer: PeerId, directory: Path) -> None:
        self.peer = peer
        self.endpoint = ipc_endpoint(private_directory(directory), peer)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.rcvhwm = HIGH_WATER
        self._router.set(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        self._router.bind(self.endpoint)
        self._control: dict[PeerId, Outbound] = {}
        self._links: dict[PeerId, Outbound] = {}
        self._endpoints: dict[PeerId, str] = {}
        self._started = self._closed = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._started = True
        self._loop.add_reader(self._router.fileno(), self._drain)
        self._loop.call_soon(self._drain)  # what came before the descriptor was watched made its edge already

    def connect(self, peer: PeerId, endpoint: str) -> None:
        """Raises AddressError for an endpoint that is no socket of this cluster's directory."""
        directory = self.endpoint.rpartition("/")[0]
        if endpoint.rpartition("/")[0] != directory or "\0" in endpoint:
            raise AddressError(f"endpoint {endpoint[:200]!r} of {peer} is not in {directory}")
        if peer not in self._control and not self._closed:
            self._control[peer] = self._open(peer, endpoint, "")
            self._endpoints[peer] = endpoint

    def disconnect(self, peer: PeerId) -> None:
        self._endpoints.pop(peer, None)
        for table in (self._control, self._links):
            if outbound := table.pop(peer, None):
                outbound.close()

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = ()) -> None:
        outbound = self._control.get(peer)
        if outbound is None:
            raise PeerGone(f"node {peer} is not connected")
        flat = wire.checked(body, buffers)
        if flat:
            outbound.send_frames([wire.SINGLE_MARK, body, *flat])
        else:
            outbound.send_small(body)

    def send_link(self, peer: PeerId, kind: Traffic, header: bytes, buffers: Sequence[Buffer]) -> None:
        if peer not in self._endpoints:
            raise PeerGone(f"node {peer} is not connected")
        flat = wire.checked(header, buffers)
        if peer not in self._links:
            self._links[peer] = self._open(peer, self._endpoints[peer], _LINK_SUFFIX)
        self._links[peer].send_frames([wire.LINK_MARKS[kind], header, *flat])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._endpoints):
            self.disconnect(peer)
        if self._started:
            self._loop.remove_reader(self._router.fileno())
        self._router.close(linger=0)
        self._context.destroy(linger=0)
        with contextlib.suppress(OSError):
            Path(self.endpoint.removeprefix("ipc://")).unlink()

    def _open(self, peer: PeerId, endpoint: str, suffix: str) -> Outbound:
        return Outbound(self._context, self._loop, endpoint, f"{self.peer}{suffix}", lambda: self._on_lost(peer))

    def _on_lost(self, peer: PeerId) -> None:
        if peer in self._endpoints:
            self.disconnect(peer)
            self._receiver.on_lost(peer)

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
                self._deliver(identity, mark, parts)
            except (WireError, AddressError, UnicodeDecodeError) as error:
                self._receiver.on_garbage(str(error))
            except Exception as error:  # a fault above must not leave the rest of the messages lying
                self._loop.call_exception_handler({"message": f"a message to {self.peer} failed", "exception": error})
        self._loop.call_soon(self._drain)

    def _deliver(self, identity: bytes, mark: bytes, parts: list[zmq.Frame]) -> None:
        peer = _sender(identity)
        if mark[:1] == _BATCH_MARK and not parts:
            for body in wire.unpack_batch(mark):
                self._receiver.on_message(peer, body, [])
            return
        if not 0 < len(parts) < wire.MAX_FRAMES:
            raise WireError(f"a message of {len(parts)} frames from {peer}")
        buffers = [part.buffer for part in parts[1:]]
        if mark == wire.SINGLE_MARK:
            self._receiver.on_message(peer, parts[0].buffer, buffers)
        else:
            self._receiver.on_link(peer, wire.link_kind(mark), parts[0].bytes, buffers)


@lru_cache(maxsize=1024)
def _sender(identity: bytes) -> PeerId:
    """Who a routing id is of. Raises AddressError, UnicodeDecodeError."""
    return parse_identity(identity.decode("ascii").removesuffix(_LINK_SUFFIX))
