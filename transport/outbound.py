"""Outgoing messages to one peer: a DEALER socket that only sends, and its bounded send queue.

Owns coalescing (the small messages of a loop tick leave at its end, as one ZeroMQ message: waking the other end costs more
than all the rest of a short message), back-pressure (NOBLOCK sends; what libzmq does not take waits here, bounded in
messages and bytes, until POLLOUT) and the watch for a broken connection (socket monitor). Receives
nothing but the answer to its greeting, before which it sends nothing else, and the notice that it is not wanted any more.
Never reconnects: an endpoint belongs to one incarnation, so a broken connection is the end of that peer and no message can
be lost in a silent reconnect. Only for links, which count what arrived, another is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from . import handshake as greeting
from . import wire
from .address import split_key
from .curve import NodeKeys
from .errors import AddressError, HandshakeRefused, PeerGone, QueueFull
from .handshake import Greeting, Lane
from .wire import Buffer, WireError

COPY_LIMIT = 64 << 10  # bytes; below, a copy is cheaper than sharing the buffer with libzmq's thread
QUEUE_MESSAGES = 8192
QUEUE_BYTES = 256 << 20
MOST_BATCHED, MOST_PARTS = wire.BATCH_BYTES - wire.BATCH_LIMIT, wire.BATCH_PARTS - wire.MAX_FRAMES  # one more fits
HIGH_WATER = 256  # messages inside libzmq, where nothing can be counted or reordered
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # arithmetic on pyzmq's enums is slow
CONNECT_TIMEOUT = 10_000  # ms for a TCP connection; the system's own is minutes
HANDSHAKE_TIMEOUT = 30_000  # ms for a handshake with keys, which waits for the loop over there to check them
_EVENT = struct.Struct("=HI")
KEY_REFUSED = "refused: the other end does not take this node's key; an invitation is good once, and for a while"
_FAILED = {  # reasons of failed handshakes
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): KEY_REFUSED,
    int(
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    ): "refused: the handshake failed; has the other end the key that its address names?",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "disconnected in the handshake; is the node with that key there?",
}
DISCONNECTED = "disconnected"  # nothing more is known
LOST_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | sum(_FAILED)
Context = zmq.Context[zmq.Socket[bytes]]


class Outbound:
    """The sending end to one peer (see the module).

    ``patience``: seconds within which the other process must answer pings, or the connection ends.
    """

    def __init__(
        self,
        context: Context,
        endpoint: str,
        hello: Greeting,
        on_lost: Callable[[str], None],
        *,
        keys: NodeKeys | None = None,
        patience: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._hello = hello
        self._lengths: list[int] = []  # lengths of the parts of this tick's batch
        self._parts: list[Buffer] = []
        self._batch_bytes = 0
        self._flush_due = False
        self._waiting: deque[list[Buffer]] = deque()  # not empty only until welcomed and while libzmq takes no more
        self._waiting_bytes = 0
        self._pulse = hello.lane is Lane.PULSE
        self._welcomed = self._closed = False
        self._socket = open_dealer(context, endpoint, keys, patience)
        self._monitor = self._socket.get_monitor_socket(LOST_EVENTS)
        self._watching = False
        self._loop.add_reader(self._monitor.fileno(), self._on_monitor)
        open_connection(self._socket, endpoint, hello.pack())
        self._loop.call_soon(self._on_monitor)
        self._watch(True)

    def send_small(self, body: bytes) -> None:
        """Send ``body`` (less than BATCH_LIMIT bytes) when this loop tick ends, with all others in one ZeroMQ message."""
        if self._waiting or self._closed:
            self._check_room(len(body))
        self._lengths.append(len(body))
        self._parts.append(body)
        self._batched(len(body))

    def send_small_parts(self, body: bytes, buffers: Sequence[Buffer], size: int) -> None:
        """Send a message with buffers in the same way. ``size``: bytes of all, less than BATCH_LIMIT."""
        self._check_room(size)
        parts = [body, *buffers]
        self._lengths += [len(part) | wire.MORE for part in parts]
        self._lengths[-1] ^= wire.MORE
        self._parts += parts
        self._batched(size)

    def _batched(self, size: int) -> None:
        self._batch_bytes += size
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_at_tick)
        elif self._batch_bytes > MOST_BATCHED or len(self._parts) > MOST_PARTS:
            self._flush()

    def send_frames(self, frames: Sequence[Buffer]) -> None:
        """Send one ZeroMQ message, after all earlier ones."""
        self._check_room(sum(map(len, frames)))
        self._flush()
        self._send(list(frames))

    def close(self) -> None:
        """Drop the queued messages. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._watch(False)
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._waiting.clear()
        self._lengths, self._parts = [], []

    def _check_room(self, size: int) -> None:
        if self._closed:
            raise PeerGone("the connection is closed")
        waiting, waiting_bytes = len(self._waiting), self._waiting_bytes
        if waiting >= QUEUE_MESSAGES or (waiting_bytes and waiting_bytes + size > QUEUE_BYTES):
            raise QueueFull(
                f"{waiting} messages of {waiting_bytes} bytes wait for a peer that does not read; send less or slower"
            )

    def _flush_at_tick(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._parts and not self._closed:
            frame = wire.pack_batch(self._lengths, self._parts)
            self._lengths = []
            self._parts = []
            self._batch_bytes = 0
            self._send([frame])

    def _send(self, frames: list[Buffer]) -> None:
        if self._pulse:
            self._loop.call_soon(self._on_ready)  # the send may consume the edge of an answer
        if self._waiting or not self._welcomed or not self._offer(frames):
            self._waiting.append(frames)
            self._waiting_bytes += sum(map(len, frames))
            self._watch(True)

    def _offer(self, frames: list[Buffer]) -> bool:
        """Hand a message to libzmq; return False if it takes none.

        libzmq takes all frames of a message once it took the first.
        """
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                self._socket.send(frame, _NOBLOCK_MORE if index < last else _NOBLOCK, copy=len(frame) < COPY_LIMIT)
        except zmq.Again:
            return False
        return True

    def _watch(self, wanted: bool) -> None:
        """Wait for POLLIN or POLLOUT.

        The descriptor is edge-triggered, so the state is read once more after it is added.
        """
        if wanted == self._watching:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_reader(self._socket.fileno(), self._on_ready)
            self._loop.call_soon(self._on_ready)
        else:
            self._loop.remove_reader(self._socket.fileno())

    def _on_ready(self) -> None:
        if self._closed or not self._watching:
            return
        if self._pulse or not self._welcomed:
            self._read_answer()
        if self._closed or not self._welcomed:
            return
        # A failed NOBLOCK send processes libzmq's pending commands, as reading EVENTS would: no edge is lost.
        while self._waiting:
            if not self._offer(self._waiting[0]):
                return
            self._waiting_bytes -= sum(map(len, self._waiting.popleft()))
        self._watch(self._pulse)

    def _read_answer(self) -> None:
        """Read the answer to the greeting; on a pulse also a later notice that this node was declared down there."""
        try:
            answer = self._socket.recv(_NOBLOCK)
        except zmq.Again:
            return
        try:
            if greeting.parse_answer(answer) != (self._hello.to, self._hello.sender):
                raise HandshakeRefused("another node answered")
        except (HandshakeRefused, WireError, AddressError) as error:
            self._end(f"refused: {error}")
            return
        self._welcomed = True

    def _on_monitor(self) -> None:
        if not self._closed and (cause := read_loss(self._monitor)) is not None:
            self._end(cause)

    def _end(self, cause: str) -> None:
        self.close()
        self._on_lost(cause)


def open_connection(socket: zmq.Socket[bytes], endpoint: str, hello: bytes) -> None:
    """Connect and greet."""
    socket.connect(split_key(endpoint)[0])
    with contextlib.suppress(zmq.Again):  # it failed already; the monitor reports it
        socket.send(hello, _NOBLOCK)


def read_loss(monitor: zmq.Socket[bytes]) -> str | None:
    """Return the reason why the watched connection ended, if it has.

    Reads until there is nothing left, because the descriptor is edge-triggered.
    """
    cause = None
    while cause is None:
        try:
            event, _ = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            break
        number = _EVENT.unpack(event)[0] if len(event) == _EVENT.size else 0
        if number & LOST_EVENTS:
            cause = _FAILED.get(number, DISCONNECTED)
    return cause


def open_dealer(context: Context, endpoint: str, keys: NodeKeys | None, patience: float | None) -> zmq.Socket[bytes]:
    """Return an unconnected socket for one connection to ``endpoint``, which does not come back once broken."""
    socket, key = context.socket(zmq.DEALER), split_key(endpoint)[1]
    socket.linger = 0
    socket.sndhwm, socket.rcvhwm = HIGH_WATER, 1
    socket.set(zmq.MAXMSGSIZE, greeting.LONGEST)  # no more than an answer is expected
    socket.set(zmq.RECONNECT_IVL, -1)
    socket.set(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT)
    if endpoint.startswith("tcp://["):
        socket.set(zmq.IPV6, 1)
    if patience is not None:
        # The peer's libzmq thread answers: this proves that the host and the network live, not that the node does.
        socket.set(zmq.HEARTBEAT_IVL, max(1, round(patience * 200)))
        socket.set(zmq.HEARTBEAT_TIMEOUT, max(1, round(patience * 800)))
        if keys is None:  # pings begin after the handshake
            socket.set(zmq.HANDSHAKE_IVL, max(1, round(patience * 1000)))
    if keys is not None:
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT)
        keys.protect(socket, server=key)
    return socket
