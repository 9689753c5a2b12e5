"""One direction to one peer: a DEALER socket that only sends, and its bounded out-queue.

Owns coalescing (small messages of one loop tick share a frame), back-pressure (NOBLOCK sends; what libzmq does not take
waits here, bounded in messages and bytes, until POLLOUT) and the watch for a broken connection (socket monitor). Never
receives, and never reconnects: an endpoint belongs to one incarnation, so a broken connection is the end of that peer and
no message can be lost in a silent reconnect.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from blockwright.transport import wire
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.wire import Buffer

COPY_LIMIT = 64 << 10  # bytes; below, a copy is cheaper than sharing the buffer with libzmq's thread
QUEUE_MESSAGES = 8192
QUEUE_BYTES = 256 << 20
HIGH_WATER = 256  # messages inside libzmq, where nothing can be counted or reordered
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)  # arithmetic on pyzmq's enums is slow
_EVENT = struct.Struct("=HI")
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Outbound:
    """See the module. ``identity`` must be unique among all that connect to ``endpoint``."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
        identity: str,
        on_lost: Callable[[], None],
    ) -> None:
        self._loop, self._on_lost = loop, on_lost
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._flush_due = False
        self._waiting: deque[list[Buffer]] = deque()  # not empty only while libzmq takes no more
        self._waiting_bytes = 0
        self._closed = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = HIGH_WATER
        self._socket.set(zmq.RECONNECT_IVL, -1)
        self._socket.set(zmq.ROUTING_ID, identity.encode())
        self._monitor = self._socket.get_monitor_socket(_LOST)
        self._watching = False
        loop.add_reader(self._monitor.fileno(), self._on_monitor)
        self._socket.connect(endpoint)
        loop.call_soon(self._on_monitor)

    def send_small(self, body: bytes) -> None:
        """Send ``body``, at the latest at the end of this loop tick, perhaps in one frame with others."""
        self._check_room(len(body))
        if len(body) >= wire.BATCH_LIMIT:
            self._flush()
            self._send([wire.SINGLE_MARK, body])
            return
        self._batch.append(body)
        self._batch_bytes += len(body)
        if self._batch_bytes >= wire.BATCH_LIMIT:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_at_tick)

    def send_frames(self, frames: Sequence[Buffer]) -> None:
        """Send one ZeroMQ message, after all that was sent before."""
        self._check_room(sum(map(len, frames)))
        self._flush()
        self._send(list(frames))

    def close(self) -> None:
        """Drop what is queued. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._watch(False)
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
        self._waiting.clear()
        self._batch.clear()

    def _check_room(self, size: int) -> None:
        if self._closed:
            raise PeerGone("the connection is closed")
        if len(self._waiting) + len(self._batch) >= QUEUE_MESSAGES or (
            self._waiting and self._waiting_bytes + size > QUEUE_BYTES
        ):
            raise QueueFull(
                f"{len(self._waiting)} messages of {self._waiting_bytes} bytes wait for a peer that does not read; "
                "send less or slower"
            )

    def _flush_at_tick(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._batch and not self._closed:
            frame = wire.pack_batch(self._batch)
            self._batch, self._batch_bytes = [], 0
            self._send([frame])

    def _send(self, frames: list[Buffer]) -> None:
        if self._waiting or not self._offer(frames):
            self._waiting.append(frames)
            self._waiting_bytes += sum(map(len, frames))
            self._watch(True)

    def _offer(self, frames: list[Buffer]) -> bool:
        """Hand a message to libzmq; False when it takes none. It takes all frames of a message once it took the first."""
        last = len(frames) - 1
        try:
            for index, frame in enumerate(frames):
                self._socket.send(frame, _NOBLOCK_MORE if index < last else _NOBLOCK, copy=len(frame) < COPY_LIMIT)
        except zmq.Again:
            return False
        return True

    def _watch(self, wanted: bool) -> None:
        """Wait for POLLOUT. The descriptor is edge-triggered, so the state is read once more after it is added."""
        if wanted == self._watching:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_reader(self._socket.fileno(), self._on_writable)
            self._loop.call_soon(self._on_writable)
        else:
            self._loop.remove_reader(self._socket.fileno())

    def _on_writable(self) -> None:
        if self._closed or not self._watching:
            return
        # A failed NOBLOCK send processes libzmq's pending commands, as reading EVENTS would: no edge is lost.
        while self._waiting:
            if not self._offer(self._waiting[0]):
                return
            self._waiting_bytes -= sum(map(len, self._waiting.popleft()))
        self._watch(False)

    def _on_monitor(self) -> None:
        while not self._closed:
            try:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(event) == _EVENT.size and _EVENT.unpack(event)[0] & _LOST:
                self.close()
                self._on_lost()
